"""ATIF: names, joins and the validity its own model asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atdp import convert
from atdp.convert.base import Record, as_records, contents

DOCUMENT: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "trajectory_id": "x1",
    "agent": {
        "name": "coder",
        "version": "2.0",
        "model_name": "m",
        "tool_definitions": [{"type": "function", "function": {"name": "f"}}],
        "extra": {"team": "a"},
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "be brief"},
        {"step_id": 2, "source": "user", "message": "go", "timestamp": "2026-01-01T00:00:00.000Z"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "calling",
            "timestamp": "2026-01-01T00:00:01.000Z",
            "reasoning_content": "I need f",
            "reasoning_effort": "low",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "f", "arguments": {"a": 1}},
                {"tool_call_id": "c2", "function_name": "f", "arguments": {}},
            ],
            "observation": {
                "results": [{"source_call_id": "c1", "content": "one"}, {"source_call_id": "c2", "content": "two"}]
            },
            "metrics": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "cost_usd": 0.5,
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.1, -0.2],
            },
        },
        {"step_id": 4, "source": "agent", "message": "done", "timestamp": "2026-01-01T00:00:02.000Z"},
    ],
    "notes": "a note",
}


def read(document: Any = DOCUMENT) -> tuple[list[Record], dict[str, bytes], convert.LossReport]:
    converted = convert.get("atif").read(json.dumps(document).encode(), convert.ReadOptions("coder"))
    items = list(converted.records)
    return list(as_records(items)), contents(items), converted.loss


def write(records: list[Record], content: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(convert.get("atif").write(records, content.get).data)
    return found


def test_a_trajectory_comes_back_as_it_was() -> None:
    records, content, _ = read()
    again = write(records, content)
    metrics = again.pop("final_metrics")
    ours = again.pop("extra")["atdp"]
    assert again == DOCUMENT
    assert metrics == {"total_steps": 4, "total_prompt_tokens": 3, "total_completion_tokens": 2, "total_cost_usd": 0.5}
    assert ours.keys() == {"time"}


def test_token_ids_and_metrics_have_their_places() -> None:
    records, _, _ = read()
    call = next(record for record in records if record.get("kind") == "llm_call")
    assert call["tokens"] == {
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 5],
        "logprobs": [-0.1, -0.2],
    }
    assert call["m"] == {"usage": {"input_tokens": 3, "output_tokens": 2}, "cost_usd": 0.5}


def test_a_cost_of_nothing_though_tokens_were_used_is_not_believed() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    document["steps"][2]["metrics"]["cost_usd"] = 0
    records, _, loss = read(document)
    assert loss.notes["cost_zero"].count == 1
    assert "cost_usd" not in next(r for r in records if r.get("kind") == "llm_call")["m"]


def test_rewards_survive_with_their_step_and_source() -> None:
    records, content, _ = read()
    call = [record for record in records if record.get("kind") == "llm_call"][-1]
    records.append(
        {
            "atdp": "1.0",
            "record": "annotation",
            "id": "n1",
            "trajectory_id": call["trajectory_id"],
            "kind": "reward",
            "name": "helpful",
            "targets": [{"trajectory_id": call["trajectory_id"], "event_id": call["id"]}],
            "source": {"kind": "human", "id": "qa"},
            "time": "2026-01-01T00:00:05.000Z",
            "value": 1.0,
        }
    )
    again, _, _ = read(write(records, content))
    reward = next(record for record in again if record.get("kind") == "reward")
    last = [record for record in again if record.get("kind") == "llm_call"][-1]
    assert (reward["name"], reward["value"], reward["source"]["id"]) == ("helpful", 1.0, "qa")
    assert reward["targets"][0]["event_id"] == last["id"]


def test_a_step_that_no_model_made_is_part_of_the_prompt() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    greeting = {"step_id": 1, "source": "agent", "message": "Hi!", "llm_call_count": 0}
    document["steps"] = [greeting, *({**step, "step_id": step["step_id"] + 1} for step in document["steps"])]
    records, content, _ = read(document)
    assert len([record for record in records if record.get("kind") == "llm_call"]) == 2
    assert write(records, content)["steps"][0] == greeting


def test_a_sub_agents_trajectory_is_one_of_its_own() -> None:
    child = {**DOCUMENT, "trajectory_id": "x2", "session_id": "s2"}
    records, _, loss = read({**DOCUMENT, "subagent_trajectories": [child]})
    assert len([record for record in records if record["record"] == "trajectory"]) == 2
    assert loss.notes["subagent"].count == 1


def test_what_is_written_obeys_the_rules_of_the_formats_own_model() -> None:
    """Harbor's model, where it can be had: step ids from 1, agent-only fields, results of the step's own calls."""
    records, content, _ = read()
    document = write(records, content)
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4]
    for step in document["steps"]:
        asked = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        assert {
            r["source_call_id"] for r in step.get("observation", {}).get("results", ()) if "source_call_id" in r
        } <= asked
        if step["source"] != "agent":
            assert not step.keys() & {"model_name", "reasoning_content", "tool_calls", "metrics"}
    try:
        from harbor.models.trajectories import Trajectory
    except ImportError:
        pytest.skip("harbor's model is not installed; its rules were checked one by one")
    Trajectory.model_validate(document)
