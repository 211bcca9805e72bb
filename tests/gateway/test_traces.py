"""Spans of instrumented agents: events joined to what the gateway captured, and nothing told twice."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.gateway.conftest import Running, user
from tests.gateway.upstream import call, say

TRACE = "0af7651916cd43dd8448eb211c80319c"
SESSION = {"x-evoplane-session-id": "s1"}


def span(
    number: int, operation: str, parent: int | None = None, trace: str = TRACE, **attributes: Any
) -> dict[str, Any]:
    """A GenAI span of OTLP JSON; underscores in names stand for dots, `_AT` sets (begin, end) in seconds."""
    began, ended = attributes.pop("_AT", (time.time() - 1, time.time()))
    named = {"gen_ai.operation.name": operation, **{k.replace("__", "."): v for k, v in attributes.items()}}
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        **({} if parent is None else {"parentSpanId": f"{parent:016x}"}),
        "name": operation,
        "startTimeUnixNano": str(int(began * 1e9)),
        "endTimeUnixNano": str(int(ended * 1e9)),
        "attributes": [{"key": key, "value": _value(value)} for key, value in named.items()],
        "status": {},
    }


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def tool(number: int, name: str, arguments: Any, result: Any, parent: int | None = None, **more: Any) -> dict[str, Any]:
    return span(
        number, "execute_tool", parent,
        gen_ai__tool__name=name, gen_ai__tool__call__arguments=arguments, gen_ai__tool__call__result=result, **more,
    )  # fmt: skip


def body(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}


async def export(running: Running, *spans: dict[str, Any], key: str = "northwind", **headers: str) -> tuple[int, Any]:
    response = await running.http.post(
        f"{running.url}/v1/traces", json=body(*spans), headers={**running.headers(key), **headers}
    )
    return response.status, await response.json()


def events(running: Running, tenant: str = "northwind") -> list[dict[str, Any]]:
    for row in running.reader.trajectories(tenant):
        assert running.reader.verify(tenant, row.trajectory_id) == []
    return [r for _, r in running.reader.events("support", tenant)[0] if r["record"] == "event"]


async def test_a_traced_tool_joins_the_captured_call_by_the_answers_id(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "look", '{"q": "a"}')))
    chat = await running.chat([user("hi")], headers=SESSION)
    answer = (await chat.json())["id"]
    status, told = await export(
        running,
        span(1, "chat", 9, gen_ai__response__id=answer, gen_ai__request__model="m"),
        tool(2, "look", {"q": "a"}, "found", 9, gen_ai__tool__call__id="c1"),
    )
    assert (status, told) == (200, {})
    found = events(running)
    assert [event["kind"] for event in found] == ["user_message", "llm_call", "tool_call"]
    assert len({event["trajectory_id"] for event in found}) == 1
    assert found[2]["causes"][0] == {"id": chat.headers["x-evoplane-event-id"], "rel": "decided_by"}
    assert found[2]["a"] == {"name": "look", "call_id": "c1", "arguments": {"q": "a"}}
    assert found[2]["y"]["result"] == "found"


async def test_a_call_without_ids_is_recognised_by_lying_within_its_span(running: Running) -> None:
    began = time.time()
    chat = await running.chat([user("hi")], headers=SESSION)
    at = (began, time.time())
    await export(running, span(1, "chat", 9, _AT=at), tool(2, "look", {}, "found", 1))
    found = events(running)
    assert [event["kind"] for event in found] == ["user_message", "llm_call", "tool_call"]
    assert found[2]["parent_id"] == chat.headers["x-evoplane-event-id"]
    assert found[2]["trajectory_id"] == found[1]["trajectory_id"]


async def test_a_model_call_that_did_not_pass_the_gateway_is_recorded_with_its_origin(running: Running) -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "hello"}], "finish_reason": "stop"}]
    await export(
        running,
        span(
            1, "chat", 9, gen_ai__conversation__id="talk", gen_ai__request__model="gpt",
            gen_ai__input__messages=messages, gen_ai__output__messages=said, gen_ai__usage__output_tokens=3,
        ),
    )  # fmt: skip
    (event,) = events(running)
    assert (event["kind"], event["ext"]["origin"]) == ("llm_call", "otlp")
    assert event["a"]["messages"][0]["parts"] == said[0]["parts"]
    assert event["m"]["usage"] == {"output_tokens": 3}
    assert running.reader.records("northwind", event["trajectory_id"])[0]["session_id"] == "talk"
    context = running.reader.contexts("northwind", event["ctx"])
    assert context is not None
    assert context["body"]["model"]["name"] == "gpt"


async def test_spans_sent_again_or_in_other_batches_are_the_same_events(running: Running) -> None:
    spans = [
        span(1, "chat", 9),
        tool(2, "look", {"q": "a"}, "x", 9),
        tool(3, "look", {"q": "a"}, "x", 9),
        span(4, "retrieval", 9),
    ]
    for batch in ([*spans], [spans[3]], spans[:2], [*spans]):
        assert (await export(running, *batch))[0] == 200
    assert [event["kind"] for event in events(running)] == ["llm_call", "tool_call", "tool_call", "retrieval"]
    assert len({event["trajectory_id"] for event in events(running)}) == 1


async def test_every_operation_is_an_event_of_its_kind_inside_the_agent_that_did_it(running: Running) -> None:
    await export(
        running,
        span(1, "invoke_agent", gen_ai__agent__name="main"),
        span(2, "invoke_agent", 1, gen_ai__agent__name="billing"),
        span(3, "retrieval", 2, gen_ai__retrieval__query__text="refunds"),
        span(4, "search_memory", 2),
        span(5, "update_memory", 2),
        span(6, "apply_guardrail", 2),
        span(7, "embeddings", 2),
        {**tool(8, "pay", {}, None, 2), "status": {"code": 2, "message": "connection refused"}},
    )
    found = {event["kind"]: event for event in events(running)}
    assert found.keys() == {
        "handoff", "retrieval", "memory_read", "memory_write", "guardrail", "x.embeddings", "tool_call",
    }  # fmt: skip
    assert found["handoff"]["a"]["name"] == "billing"
    assert found["retrieval"]["parent_id"] == found["handoff"]["id"]
    assert found["retrieval"]["replay"]["effect"] == "read"
    assert found["tool_call"]["y"]["status"] == "error"
    assert found["tool_call"]["y"]["error"] == {"type": "unavailable", "message": "connection refused"}


async def test_a_span_about_a_result_that_came_back_already_describes_it(running: Running) -> None:
    running.upstream.scripts += [call(("c1", "look", '{"q": "a"}')), say("done")]
    first = await running.chat([user("hi")], headers=SESSION)
    answer = (await first.json())["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    await running.chat([user("hi"), answer, result], headers=SESSION)
    for _ in range(2):
        await export(running, tool(2, "look", {"q": "a"}, "found", 9), **SESSION)
    (event,) = [event for event in events(running) if event["kind"] == "tool_call"]
    records = running.reader.records("northwind", event["trajectory_id"])
    (label,) = [record for record in records if record.get("name") == "reported"]
    assert label["targets"][0]["event_id"] == event["id"]
    assert label["ext"]["duration_ms"] > 0


async def test_protobuf_and_gzip_say_the_same_as_json_and_are_answered_in_kind(running: Running) -> None:
    message = ParseDict(_base64_ids(body(tool(2, "look", {"q": "a"}, "found"))), ExportTraceServiceRequest())
    binary = message.SerializeToString()
    for data, encoding in ((binary, {}), (gzip.compress(binary), {"content-encoding": "gzip"})):
        headers = {**running.headers(), "content-type": "application/x-protobuf", **encoding}
        async with running.http.post(f"{running.url}/v1/traces", data=data, headers=headers) as response:
            assert (response.status, response.content_type) == (200, "application/x-protobuf")
            assert await response.read() == b""
    await export(running, tool(2, "look", {"q": "a"}, "found"))
    (event,) = events(running)
    assert (event["a"]["arguments"], event["span_id"]) == ({"q": "a"}, f"{2:016x}")


def _base64_ids(request: dict[str, Any]) -> dict[str, Any]:
    """Protobuf's own JSON has ids in base64."""
    import base64

    for each in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in each:
                each[name] = base64.b64encode(bytes.fromhex(each[name])).decode()
    return request


async def test_refused_spans_are_counted_in_otlps_own_answer(running: Running) -> None:
    bad = {**tool(2, "look", {}, None), "spanId": ""}
    status, told = await export(running, tool(1, "look", {}, None), bad)
    assert (status, told["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert "spanId" in told["partialSuccess"]["errorMessage"]
    assert len(events(running)) == 1
    binary = ParseDict(_base64_ids(body(bad)), ExportTraceServiceRequest()).SerializeToString()
    headers = {**running.headers(), "content-type": "application/x-protobuf"}
    async with running.http.post(f"{running.url}/v1/traces", data=binary, headers=headers) as response:
        answer = ExportTraceServiceResponse.FromString(await response.read())
    assert answer.partial_success.rejected_spans == 1
    assert "spanId" in answer.partial_success.error_message


@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf"])
@pytest.mark.parametrize(("data", "key", "status", "code"), [(b"\xff\xff", "northwind", 400, 3), (b"", None, 401, 16)])
async def test_errors_have_the_form_that_exporters_read(
    running: Running, kind: str, data: bytes, key: str | None, status: int, code: int
) -> None:
    headers = {"content-type": kind, **(running.headers(key) if key else {})}
    async with running.http.post(f"{running.url}/v1/traces", data=data, headers=headers) as response:
        assert (response.status, response.content_type) == (status, kind)
        answer = await response.read()
    if kind == "application/json":
        assert json.loads(answer)["code"] == code
    else:
        assert answer[:2] == bytes([8, code])


async def test_spans_that_are_no_step_of_an_agent_are_taken_and_leave_nothing(running: Running) -> None:
    plain = {**span(1, "x"), "attributes": [{"key": "http.request.method", "value": {"stringValue": "GET"}}]}
    assert await export(running, plain) == (200, {})
    assert running.reader.tenants() == []


async def test_another_tenants_answer_is_not_found_by_its_id(running: Running) -> None:
    chat = await running.chat([user("hi")], headers=SESSION)
    answer = (await chat.json())["id"]
    await export(running, span(1, "chat", 9, gen_ai__response__id=answer), tool(2, "t", {}, 1, 1), key="lumen")
    assert [event["kind"] for event in events(running)] == ["user_message", "llm_call"]
    assert [event["kind"] for event in events(running, "lumen")] == ["llm_call", "tool_call"]


async def test_a_score_on_a_span_is_a_signal_about_its_event(running: Running) -> None:
    scored = tool(2, "look", {}, "found")
    scored["events"] = [
        {
            "name": "gen_ai.evaluation.result",
            "timeUnixNano": "1",
            "attributes": [
                {"key": "gen_ai.evaluation.name", "value": {"stringValue": "relevance"}},
                {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}},
            ],
        }
    ]
    for _ in range(2):
        await export(running, scored)
    (event,) = events(running)
    signals = [r for r in running.reader.records("northwind", event["trajectory_id"]) if r["record"] == "annotation"]
    assert [(s["name"], s["value"], s["targets"][0]["event_id"]) for s in signals] == [("relevance", 0.5, event["id"])]
