"""Each foreign format reads into the records it should, and is written as its own readers expect it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from atdp import convert
from atdp.convert.base import Record, as_records, contents
from atdp.records import TrajectoryDraft

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"id": 7}'}}


def said(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in turns]


def conversation() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "where is order 7?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "shipped"},
        {"role": "assistant", "content": "It was shipped."},
    ]


def records(name: str, data: bytes, **options: Any) -> tuple[list[Record], dict[str, bytes], convert.LossReport]:
    converted = convert.get(name).read(data, convert.ReadOptions(**options))
    items = list(converted.records)
    return list(as_records(items)), contents(items), converted.loss


def jsonl(*rows: Any) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def events(found: list[Record], *kinds: str) -> list[Record]:
    return [record for record in found if record.get("kind") in kinds]


def sft() -> tuple[list[Record], dict[str, bytes]]:
    return records("openai-sft", jsonl({"messages": conversation(), "tools": [TOOL]}))[:2]


SAME_AGAIN: dict[str, bytes] = {
    "openai-sft": jsonl(
        {"messages": said(("user", "q"), ("assistant", "a")), "tools": [TOOL], "parallel_tool_calls": True}
    ),
    "openai-preference": jsonl(
        {
            "input": {"messages": said(("user", "q")), "tools": [TOOL], "parallel_tool_calls": True},
            "preferred_output": said(("assistant", "good")),
            "non_preferred_output": said(("assistant", "bad")),
        }
    ),
    "trl-sft": jsonl({"prompt": said(("user", "q")), "completion": said(("assistant", "a")), "origin": "x"}),
    "trl-preference": jsonl(
        {
            "prompt": said(("user", "q")),
            "chosen": said(("assistant", "a")),
            "rejected": said(("assistant", "b")),
            "n": 1,
        }
    ),
    "trl-grpo": jsonl(
        {
            "prompt": said(("user", "q")),
            "completion": said(("assistant", "a")),
            "reward": 0.5,
            "prompt_ids": [1, 2],
            "completion_ids": [3],
            "logprobs": [-0.1],
            "group_id": "g",
            "answer": "42",
        },
        {"prompt": said(("user", "q"))},
    ),
    "rlds": jsonl(
        {
            "task_id": "t",
            "steps": [
                {
                    "observation": {"messages": said(("user", "q"))},
                    "action": {"messages": said(("assistant", "a"))},
                    "reward": 0.5,
                    "discount": 1.0,
                    "is_first": True,
                    "is_last": False,
                    "is_terminal": False,
                },
                {
                    "observation": {"messages": said(("user", "more"))},
                    "action": {"messages": said(("assistant", "b"))},
                    "reward": 1.0,
                    "is_first": False,
                    "is_last": True,
                    "is_terminal": True,
                },
            ],
        },
        {
            "environment": "cart",
            "steps": [
                {
                    "observation": [0.5, 1],
                    "action": 3,
                    "reward": 1.0,
                    "is_first": True,
                    "is_last": True,
                    "is_terminal": False,
                }
            ],
        },
    ),
    "adp": jsonl(
        {
            "schema_version": "1.2.0",
            "id": "x",
            "content": [
                {"class_": "text_observation", "content": "fix it", "source": "user"},
                {"class_": "code_action", "language": "python", "content": "1/0", "description": "try", "reward": 0.1},
                {"class_": "text_observation", "content": "ZeroDivisionError", "source": "environment"},
                {"class_": "api_action", "function": "search", "kwargs": {"q": "x"}, "reasoning_content": "hm"},
                {"class_": "web_observation", "url": "https://e.org", "html": "<p>"},
                {"class_": "message_action", "content": "done"},
            ],
            "details": {"dataset": "d"},
        }
    ),
}


@pytest.mark.parametrize("name", SAME_AGAIN)
def test_what_is_read_is_written_as_it_was(name: str) -> None:
    found, content, loss = records(name, SAME_AGAIN[name])
    written = convert.get(name).write(found, content.get)
    assert [json.loads(line) for line in written.data.splitlines()] == [
        json.loads(line) for line in SAME_AGAIN[name].splitlines()
    ]
    assert not loss.lost


@pytest.mark.parametrize("name", SAME_AGAIN)
def test_a_format_is_told_by_its_content(name: str) -> None:
    assert convert.detect(SAME_AGAIN[name].splitlines(keepends=True)).name == name


def test_a_conversation_becomes_calls_that_continue_each_other_and_a_tool_call_between() -> None:
    found, _ = sft()
    user, first, tool, second = events(found, "user_message", "llm_call", "tool_call")
    assert [event["kind"] for event in (user, first, tool, second)] == [
        "user_message",
        "llm_call",
        "tool_call",
        "llm_call",
    ]
    assert second["o"]["messages"] == {"prefix": first["id"], "append": [{"event": tool["id"]}]}
    assert tool["causes"] == [{"id": first["id"], "rel": "decided_by"}]
    assert tool["a"] == {"name": "lookup", "call_id": "c1", "arguments": {"id": 7}}
    assert {cause["id"] for cause in first["causes"]} == {user["id"]}
    assert (user["turn"], first["step"], second["step"]) == (1, 1, 2)


def test_the_tools_of_a_conversation_are_content_its_context_names() -> None:
    found, content = sft()
    (context,) = [record for record in found if record["record"] == "context"]
    (tool,) = context["body"]["tools"]
    assert orjson.loads(content[tool["schema"]]) == TOOL


def test_imported_records_may_not_train_until_somebody_says_so() -> None:
    found, _ = sft()
    (header,) = [record for record in found if record["record"] == "trajectory"]
    assert header["gov"]["eligibility"]["train"] == "pending"
    assert header["origin"] == {"producer": "atdp.convert/1.0", "format": "openai-sft"}


def test_a_result_whose_call_id_was_used_before_belongs_to_the_call_just_made() -> None:
    again = [*conversation(), {"role": "user", "content": "and 8?"}]
    other = {**CALL, "function": {"name": "lookup", "arguments": '{"id": 8}'}}
    again += [
        {"role": "assistant", "content": None, "tool_calls": [other]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    ]
    found, _, loss = records("openai-sft", jsonl({"messages": again}))
    first, second = events(found, "tool_call")
    assert (first["a"]["arguments"], second["a"]["arguments"]) == ({"id": 7}, {"id": 8})
    assert first["id"] != second["id"]
    assert loss.notes["repeated_call_id"].count == 1


def test_a_preference_is_two_answers_to_one_prompt_and_which_is_better() -> None:
    found, _, _ = records("openai-preference", SAME_AGAIN["openai-preference"])
    worse, better = events(found, "llm_call")
    (preference,) = events(found, "preference")
    assert preference["chosen"]["event_id"] == better["id"]
    assert preference["rejected"]["event_id"] == worse["id"]
    assert better["o"] == worse["o"]
    assert {"id": worse["id"], "rel": "branch_of"} in better["causes"]


def test_a_demonstration_is_written_as_the_better_side_of_a_pair() -> None:
    found, _ = sft()
    call = events(found, "llm_call")[-1]
    found.append(
        {
            "atdp": "1.0",
            "record": "annotation",
            "id": "n",
            "trajectory_id": call["trajectory_id"],
            "kind": "preference",
            "name": "demonstration",
            "targets": [{"trajectory_id": call["trajectory_id"], "event_id": call["id"]}],
            "chosen": {"trajectory_id": call["trajectory_id"], "event_id": call["id"]},
            "source": {"kind": "human"},
            "time": "2026-01-01T00:00:00.000Z",
            "ext": {"demonstration": {"role": "assistant", "content": "Yesterday."}},
        }
    )
    (row,) = [json.loads(line) for line in convert.get("trl-preference").write(found).data.splitlines()]
    assert row["chosen"] == said(("assistant", "Yesterday."))
    assert row["rejected"] == said(("assistant", "It was shipped."))
    assert row["prompt"][-1]["content"] == "shipped"


@pytest.mark.stack  # importing TRL takes half a minute
@pytest.mark.parametrize("name", ["trl-sft", "trl-preference"])
def test_rows_written_for_trl_are_what_trl_takes_for_conversational(name: str) -> None:
    trl = pytest.importorskip("trl.data_utils")
    found, content, _ = records(name, SAME_AGAIN[name])
    row = json.loads(convert.get(name).write(found, content.get).data)
    assert trl.is_conversational(row)


def test_text_instead_of_messages_is_taken_as_a_user_and_an_assistant() -> None:
    found, _, loss = records("trl-preference", jsonl({"prompt": "2+2?", "chosen": "4", "rejected": "5"}))
    assert loss.notes["standard_form"].count == 1
    row = json.loads(convert.get("trl-preference").write(found).data)
    assert row["prompt"] == said(("user", "2+2?"))


def test_an_implicit_prompt_is_what_both_sides_begin_with() -> None:
    row = {"chosen": said(("user", "q"), ("assistant", "a")), "rejected": said(("user", "q"), ("assistant", "b"))}
    found, _, _ = records("trl-preference", jsonl(row))
    assert json.loads(convert.get("trl-preference").write(found).data)["prompt"] == said(("user", "q"))


def test_the_same_answer_sampled_twice_is_two_roll_outs() -> None:
    row = {"prompt": said(("user", "q")), "completion": said(("assistant", "a")), "reward": 1.0}
    found, _, loss = records("trl-grpo", jsonl(row, row))
    assert len([record for record in found if record["record"] == "trajectory"]) == 2
    assert "duplicate" not in loss.notes


def test_a_line_that_is_there_twice_is_one_trajectory_and_noted() -> None:
    line = {"messages": said(("user", "q"), ("assistant", "a"))}
    found, _, loss = records("openai-sft", jsonl(line, line))
    assert len([record for record in found if record["record"] == "trajectory"]) == 1
    assert loss.notes["duplicate"].count == 1


def test_the_same_run_of_two_agents_is_two_trajectories() -> None:
    data = jsonl({"messages": said(("user", "q"), ("assistant", "a"))})
    ids = {records("openai-sft", data, agent=agent)[0][1]["trajectory_id"] for agent in ("a", "b")}
    assert len(ids) == 2


def test_what_a_format_cannot_carry_is_counted_with_examples() -> None:
    found, content = sft()
    call = events(found, "llm_call")[0]
    call["tokens"] = {"prompt_token_ids": [1], "completion_token_ids": [2]}
    call["h"] = {"summary": "look it up first"}
    call["gov"] = {"classification": "restricted"}
    loss = convert.get("openai-sft").write(found, content.get).loss
    assert {"event.tokens", "event.h", "event.gov"} <= loss.lost.keys()
    assert loss.lost["event.h"].examples == ["{'summary': 'look it up first'}"]


def test_sealed_content_is_lost_by_name_not_written_as_something_else() -> None:
    found, content = sft()
    sealed = {"sealed": "blob_1", "commit": "hmac-sha256:00", "labels": ["pii"]}
    events(found, "tool_call")[0]["y"]["result"] = sealed
    loss = convert.get("atif").write(found, content.get).loss
    assert loss.lost["content (sealed)"].count == 1


def test_operations_that_no_message_shows_are_counted_by_formats_that_are_messages() -> None:
    found, content = sft()
    first = events(found, "llm_call")[0]
    found.append({**first, "id": "m1", "kind": "memory_read", "o": {}, "a": {"name": "search"}, "y": {"status": "ok"}})
    loss = convert.get("openai-sft").write(found, content.get).loss
    assert loss.lost["event.memory_read (not shown to the model)"].count == 1


def test_a_source_of_another_format_is_refused_with_the_line() -> None:
    with pytest.raises(convert.ConversionError, match="line 2"):
        records("openai-sft", b'{"messages": []}\nnot json\n')
    with pytest.raises(convert.ConversionError, match="no format 'parquet'"):
        convert.get("parquet")


@pytest.mark.parametrize("name", [name for name in convert.FORMATS if name != "atdp"])
def test_json_that_is_something_else_is_an_error_of_the_source_not_of_ours(name: str) -> None:
    for data in (b'{"a": 1}', b'{"steps": [{}], "content": [{}], "messages": [{}], "info": {}}', b"[1]", b"[[]]"):
        try:
            list(convert.get(name).read(data).records)
        except convert.ConversionError:
            continue


def captured() -> list[Record]:
    """What a gateway stores of other dialects: instructions as a provider's blocks, images, parts of its own."""
    found, _ = sft()
    call = events(found, "llm_call")[0]
    call["o"]["system_instructions"] = [{"type": "text", "text": "be terse", "cache_control": {"type": "ephemeral"}}]
    call["o"]["messages"][1]["parts"] += [
        {"type": "x.openai", "content": {"type": "image_url", "image_url": {"url": "data:,"}}},
        {"type": "x.anthropic", "content": {"type": "document"}},
    ]
    call["a"]["messages"] *= 2
    call["y"] = {"status": "truncated", "error": {"type": "upstream_ended", "message": "gone"}}
    tool = events(found, "tool_call")[0]
    extra = {"a": {}, "y": {"status": "ok"}, "causes": []}
    found += [{**tool, **extra, "id": "x1", "kind": "x.embedding"}, {**tool, **extra, "id": "x2", "kind": "outcome"}]
    return found


@pytest.mark.parametrize("name", convert.FORMATS)
def test_every_format_writes_what_a_gateway_captured_and_counts_what_it_cannot(name: str) -> None:
    written = convert.get(name).write(captured())
    assert written.loss.lost or name == "atdp"
    elsewhere = (
        "openai-preference",
        "trl-preference",
        "tensorzero",
        "gskill",
        "judge-verdicts",
        "intercode",
        "reflexion",
    )
    assert b"be terse" in written.data or name in elsewhere or "message.system" in written.loss.lost


def test_lines_may_come_in_any_pieces() -> None:
    whole = SAME_AGAIN["trl-grpo"]
    for size in (1, 7, 64):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        converted = convert.get("trl-grpo").read(pieces)
        assert list(as_records(converted.records)) == records("trl-grpo", whole)[0]


def test_json_lines_are_read_as_they_come() -> None:
    def endless() -> Iterator[bytes]:
        number = 0
        while True:
            yield jsonl({"messages": said(("user", f"q{number}"), ("assistant", "a"))})
            number += 1

    converted = convert.get("openai-sft").read(endless())
    headers = (item for item in converted.records if isinstance(item, TrajectoryDraft))
    assert len({next(headers).trajectory_id for _ in range(5)}) == 5


def test_an_integer_beyond_what_json_holds_exactly_keeps_its_digits() -> None:
    found, _, _ = records("rlds", jsonl({"steps": [{"observation": 2**60, "action": 1}]}))
    (step,) = events(found, "x.rlds_step")
    assert step["o"]["state"] == str(2**60)
