"""Spans of OpenTelemetry's GenAI conventions, of OpenInference and of MLflow become steps, and steps spans."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from atdp import convert
from atdp.convert import otlp
from atdp.convert.base import Record, as_records, contents
from atdp.convert.otlp.spans import key_values
from atdp.convert.view import trajectories

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECOND = 1_000_000_000


def span(id: int, start: int, end: int, parent: int | None = None, **attributes: Any) -> dict[str, Any]:
    """A span with dotted attributes given with `__` for the dot."""
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {
        "traceId": TRACE,
        "spanId": f"{id:016x}",
        **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": f"span {id}",
        "startTimeUnixNano": str(1_700_000_000 * SECOND + start * SECOND),
        "endTimeUnixNano": str(1_700_000_000 * SECOND + end * SECOND),
        "attributes": key_values(named),
    }


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": key_values({"service.name": "shop", "deployment.environment": "eu"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


def message(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts), **more}


USER = message("user", {"type": "text", "content": "where is order 7?"})
CALL = message(
    "assistant", {"type": "tool_call", "id": "c1", "name": "lookup", "arguments": {"id": 7}}, finish_reason="tool_call"
)
RESULT = message("tool", {"type": "tool_call_response", "id": "c1", "response": "shipped"})
ANSWER = message("assistant", {"type": "text", "content": "Shipped."}, finish_reason="stop")


def chat(id: int, start: int, end: int, shown: list[Any], said: list[Any], **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "gen_ai__operation__name": "chat",
        "gen_ai__request__model": "m",
        "gen_ai__provider__name": "p",
        "gen_ai__request__temperature": 0.5,
        "gen_ai__input__messages": json.dumps(shown),
        "gen_ai__output__messages": json.dumps(said),
        "gen_ai__usage__input_tokens": 10,
        "gen_ai__usage__output_tokens": 4,
        "gen_ai__conversation__id": "s1",
        **more,
    }
    return span(id, start, end, 1, **given)


def genai() -> dict[str, Any]:
    """An agent that asks its model, runs a tool, asks again."""
    tool = {
        "gen_ai__operation__name": "execute_tool",
        "gen_ai__tool__name": "lookup",
        "gen_ai__tool__call__id": "c1",
        "gen_ai__tool__call__arguments": '{"id": 7}',
        "gen_ai__tool__call__result": '"shipped"',
    }
    return request(
        span(1, 0, 9, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="support"),
        chat(2, 1, 2, [USER], [CALL], custom__thing="kept"),
        span(3, 2, 3, 9, **tool),
        span(9, 2, 4, 1, http__method="GET"),
        chat(4, 4, 5, [USER, {**CALL, "finish_reason": None}, RESULT], [ANSWER]),
    )


def read(name: str, document: Any) -> tuple[list[Record], dict[str, bytes], convert.LossReport]:
    converted = convert.get(name).read(json.dumps(document).encode())
    items = list(converted.records)
    return list(as_records(items)), contents(items), converted.loss


def events(records: list[Record]) -> list[Record]:
    return [record for record in records if record["record"] == "event"]


def test_spans_become_steps_in_the_order_in_which_they_ended() -> None:
    records, _, _ = read("otlp", genai())
    assert [event["kind"] for event in events(records)] == ["llm_call", "tool_call", "llm_call", "handoff"]


def test_parents_skip_spans_that_are_no_steps() -> None:
    records, _, loss = read("otlp", genai())
    _, tool, _, agent = events(records)
    assert tool["parent_id"] == agent["id"]
    assert loss.lost["span (no step of an agent)"].examples == ["span 9"]


def test_causes_follow_the_ids_of_calls() -> None:
    records, _, _ = read("otlp", genai())
    asked, tool, answered, _ = events(records)
    assert tool["causes"] == [{"id": asked["id"], "rel": "decided_by"}]
    assert answered["causes"] == [{"id": tool["id"], "rel": "input"}]


def test_a_call_keeps_its_messages_parameters_usage_and_what_has_no_field() -> None:
    records, _, _ = read("otlp", genai())
    call = events(records)[0]
    assert call["o"]["messages"] == [USER]
    assert call["a"]["params"] == {"temperature": 0.5}
    assert call["m"]["usage"] == {"input_tokens": 10, "output_tokens": 4}
    assert call["y"] == {"status": "ok", "finish_reason": "tool_call"}
    assert call["ext"]["otel"]["attributes"] == {"custom.thing": "kept"}
    assert call["span_id"] == f"{2:016x}"


def test_a_trace_is_a_trajectory_of_its_conversation() -> None:
    records, _, _ = read("otlp", genai())
    (header,) = [record for record in records if record["record"] == "trajectory"]
    assert header["session_id"] == "s1"
    assert header["origin"]["trace_id"] == TRACE
    assert header["ext"]["otel"]["resource"]["deployment.environment"] == "eu"


def test_an_error_has_its_type_and_message() -> None:
    failed = span(2, 0, 1, gen_ai__operation__name="execute_tool", gen_ai__tool__name="f", error__type="timeout")
    failed["status"] = {"code": 2, "message": "took too long"}
    records, _, _ = read("otlp", request(failed))
    assert events(records)[0]["y"] == {"status": "error", "error": {"type": "timeout", "message": "took too long"}}


def test_the_same_span_in_another_batch_is_the_same_event() -> None:
    steps = otlp.steps(genai())
    again = otlp.steps(request(genai()["resourceSpans"][0]["scopeSpans"][0]["spans"][2]))
    assert [step.event_id for step in steps if step.span.name == "span 3"] == [step.event_id for step in again]


def test_ids_in_base64_as_protobuf_decoders_write_them_are_the_same_ids() -> None:
    document = genai()
    for found in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in found:
                found[key] = base64.b64encode(bytes.fromhex(found[key])).decode()
    assert [step.event_id for step in otlp.steps(document)] == [step.event_id for step in otlp.steps(genai())]


LEGACY = {
    "numbered attributes": {
        "gen_ai__prompt__0__role": "user",
        "gen_ai__prompt__0__content": "hi",
        "gen_ai__completion__0__role": "assistant",
        "gen_ai__completion__0__content": "yo",
        "gen_ai__completion__0__finish_reason": "stop",
    },
    "chat messages": {
        "gen_ai__input__messages": json.dumps([{"role": "user", "content": "hi"}]),
        "gen_ai__output__messages": json.dumps([{"role": "assistant", "content": "yo", "finish_reason": "stop"}]),
    },
}


@pytest.mark.parametrize("form", LEGACY)
def test_older_forms_of_messages_are_understood(form: str) -> None:
    (step,) = otlp.steps(request(span(1, 0, 1, gen_ai__operation__name="chat", **LEGACY[form])))
    assert step.step.o["messages"][0]["parts"] == [{"type": "text", "content": "hi"}]
    assert step.step.a["messages"][0]["parts"] == [{"type": "text", "content": "yo"}]


def test_messages_in_span_events_are_understood() -> None:
    found = span(1, 0, 1, gen_ai__operation__name="chat")
    found["events"] = [
        {"name": "gen_ai.user.message", "timeUnixNano": "1", "attributes": key_values({"content": "hi"})},
        {"name": "gen_ai.choice", "timeUnixNano": "2", "attributes": key_values({"message": '{"content": "yo"}'})},
    ]
    (step,) = otlp.steps(request(found))
    assert step.step.o["messages"][0]["parts"][0]["content"] == "hi"
    assert step.step.a["messages"][0]["parts"][0]["content"] == "yo"


OPENINFERENCE = {
    "openinference__span__kind": "LLM",
    "llm__model_name": "m",
    "llm__invocation_parameters": '{"temperature": 0.5}',
    "llm__input_messages__0__message__role": "user",
    "llm__input_messages__0__message__content": "where is order 7?",
    "llm__output_messages__0__message__role": "assistant",
    "llm__output_messages__0__message__tool_calls__0__tool_call__id": "c1",
    "llm__output_messages__0__message__tool_calls__0__tool_call__function__name": "lookup",
    "llm__output_messages__0__message__tool_calls__0__tool_call__function__arguments": '{"id": 7}',
    "llm__token_count__prompt": 10,
    "llm__token_count__completion": 4,
    "llm__tools__0__tool__json_schema": '{"type": "function", "function": {"name": "lookup"}}',
    "session__id": "s1",
}


def test_openinference_spans_say_the_same_as_genai_spans() -> None:
    retriever = {
        "openinference__span__kind": "RETRIEVER",
        "input__value": "order 7",
        "retrieval__documents__0__document__id": "d1",
        "retrieval__documents__0__document__content": "shipped",
    }
    document = request(span(2, 1, 2, **OPENINFERENCE), span(3, 2, 3, **retriever))
    records, content, _ = read("openinference", document)
    call, retrieval = events(records)
    assert call["a"]["messages"][0]["parts"][0] == CALL["parts"][0]
    assert call["a"]["params"] == {"temperature": 0.5}
    assert call["m"]["usage"] == {"input_tokens": 10, "output_tokens": 4}
    assert retrieval["kind"] == "retrieval"
    assert retrieval["y"]["result"] == [{"id": "d1", "content": "shipped"}]
    assert len(content) == 1


@pytest.mark.parametrize("name", ["otlp", "openinference"])
def test_what_is_written_reads_as_the_same_steps(name: str) -> None:
    records, content, _ = read("otlp", genai())
    written = convert.get(name).write(records, content.get)
    document = json.loads(written.data)
    assert convert.detect([written.data]).name == name
    again, _, _ = read(name, document)
    assert [_told(event) for event in events(again)] == [_told(event) for event in events(records)]
    assert [event["span_id"] for event in events(again)] == [event["span_id"] for event in events(records)]


def _told(event: Record) -> Any:
    prompt = [m["parts"] for m in event.get("o", {}).get("messages", [])]
    answer = [[{k: v for k, v in p.items() if k != "raw"} for p in m["parts"]] for m in event["a"].get("messages", [])]
    keys = ("kind", "time", "duration_ms")
    return (
        [event[k] for k in keys],
        prompt,
        answer,
        event["a"].get("name"),
        event["y"].get("result"),
        event.get("causes"),
    )


def test_instructions_beside_the_messages_stay_beside_them_and_are_seen_by_formats_that_have_no_beside() -> None:
    system = json.dumps([{"type": "text", "content": "be brief"}])
    records, content, _ = read("otlp", request(chat(2, 1, 2, [USER], [ANSWER], gen_ai__system_instructions=system)))
    assert events(records)[0]["o"]["system_instructions"] == "be brief"
    (view,) = trajectories(records)
    assert view.transcript()[0].message["role"] == "system"
    (again,) = otlp.steps(json.loads(convert.get("otlp").write(records, content.get).data))
    assert again.step.o == events(records)[0]["o"]


def test_an_evaluation_on_a_span_is_a_reward_of_its_step_and_back() -> None:
    found = chat(2, 1, 2, [USER], [ANSWER])
    score = {"gen_ai.evaluation.name": "polite", "gen_ai.evaluation.score.value": 0.5}
    found["events"] = [{"name": "gen_ai.evaluation.result", "timeUnixNano": "1", "attributes": key_values(score)}]
    records, content, _ = read("otlp", request(found))
    (reward,) = [record for record in records if record["record"] == "annotation"]
    assert (reward["name"], reward["value"]) == ("polite", 0.5)
    assert reward["targets"][0]["event_id"] == events(records)[0]["id"]
    (again,) = otlp.steps(json.loads(convert.get("otlp").write(records, content.get).data))
    assert again.step.evaluations == [{"name": "polite", "value": 0.5}]


def mlflow() -> dict[str, Any]:
    """The form of `Trace.to_dict()` of MLflow 3.17."""

    def made(id: int, parent: int | None, start: int, **attributes: Any) -> dict[str, Any]:
        return {
            "trace_id": base64.b64encode(bytes.fromhex(TRACE)).decode(),
            "span_id": base64.b64encode(id.to_bytes(8, "big")).decode(),
            "parent_span_id": base64.b64encode(parent.to_bytes(8, "big")).decode() if parent else None,
            "name": f"step {id}",
            "start_time_unix_nano": (1_700_000_000 + start) * SECOND,
            "end_time_unix_nano": (1_700_000_010 if parent is None else 1_700_000_001 + start) * SECOND,
            "events": [],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {f"mlflow.{key}": json.dumps(value) for key, value in attributes.items()},
            "links": [],
        }

    given = {"messages": [{"role": "user", "content": "hi"}], "model": "m", "temperature": 0.5}
    output = {"choices": [{"message": {"role": "assistant", "content": "yo"}, "finish_reason": "stop"}]}
    usage = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
    model = made(2, 1, 1, spanType="CHAT_MODEL", spanInputs=given, spanOutputs=output)
    model["attributes"]["mlflow.chat.tokenUsage"] = json.dumps(usage)
    return {
        "info": {
            "trace_id": "tr-1",
            "request_time": "2026-01-01T00:00:00Z",
            "state": "OK",
            "assessments": [
                {
                    "assessment_id": "a-1",
                    "assessment_name": "good",
                    "source": {"source_type": "HUMAN", "source_id": "dana"},
                    "create_time": "2026-01-01T00:00:00.000Z",
                    "feedback": {"value": True},
                    "rationale": "polite",
                    "valid": True,
                }
            ],
            "tags": {"mlflow.traceName": "agent"},
            "trace_metadata": {"mlflow.trace_schema.version": "3"},
        },
        "data": {
            "spans": [
                made(1, None, 0, spanType="AGENT", spanInputs={"q": 1}, spanOutputs={"a": 2}),
                model,
                made(3, 1, 2, spanType="TOOL", spanInputs={"x": 1}, spanOutputs="r"),
            ]
        },
    }


def test_an_mlflow_trace_becomes_steps_and_its_assessments_rewards_with_their_source() -> None:
    records, _, _ = read("mlflow", mlflow())
    call, tool, agent = events(records)
    assert (call["kind"], tool["kind"], agent["kind"]) == ("llm_call", "tool_call", "handoff")
    assert call["a"]["params"] == {"temperature": 0.5}
    assert call["m"]["usage"] == {"input_tokens": 3, "output_tokens": 1}
    assert tool["parent_id"] == agent["id"]
    (reward,) = [record for record in records if record["record"] == "annotation"]
    assert (reward["value"], reward["explanation"]) == (True, "polite")
    assert reward["source"] == {"kind": "human", "id": "dana"}


def test_an_mlflow_trace_comes_back_with_its_spans_and_assessments() -> None:
    records, content, _ = read("mlflow", mlflow())
    trace = json.loads(convert.get("mlflow").write(records, content.get).data)
    spans = {span["name"]: span for span in trace["data"]["spans"]}
    for original in mlflow()["data"]["spans"]:
        again = spans[original["name"]]
        for key in ("trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano"):
            assert again[key] == original[key]
        assert json.loads(again["attributes"]["mlflow.spanType"]) == json.loads(
            original["attributes"]["mlflow.spanType"]
        )
    assert trace["info"]["trace_id"] == "tr-1"
    assert trace["info"]["assessments"][0]["feedback"] == {"value": True}
    assert read("mlflow", trace)[0] == records
