"""What follows a decision until the user speaks again."""

import itertools

import msgspec
import pytest

from atdp import convert
from evaluators.cases import cases_of
from evaluators.steps import Step, steps_by_decision
from tests.shared import DATA, REASON


def event(id, kind, **fields):
    return {"record": "event", "id": id, "kind": kind, "time": "2026-01-01T00:00:00Z", "trajectory_id": "t", "ctx": "c",
            "y": {"status": "ok"}, **fields}  # fmt: skip


def asking(id, *roles):
    messages = [{"role": role, "parts": [{"type": "text", "content": role}]} for role in roles]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": f"answer {id}"}]}]
    return event(id, "llm_call", o={"messages": messages}, a={"messages": answer})


def tool(id, name, arguments, result, decided_by=None, **y):
    causes = [{"id": decided_by, "rel": "decided_by"}] if decided_by else []
    return event(id, "tool_call", causes=causes, a={"name": name, "arguments": arguments},
                 y={"status": "ok", "result": result, **y})  # fmt: skip


def steps_of(*events):
    records = [{"record": "trajectory", "id": "t", "session_id": "s"}, *events]
    return {case.event_id: case.steps for case in cases_of("northwind", records, lambda _: [])}


def test_tool_results_and_later_answers_belong_to_the_decision_before_them():
    found = steps_of(
        event("u1", "user_message"), asking("d1", "user"), tool("t1", "find", {"q": 1}, "C1", "d1"),
        asking("a1", "user", "assistant", "tool"), tool("t2", "cancel", {"id": "C1"}, "done", "a1"),
        event("u2", "user_message"), asking("d2", "user"),
    )  # fmt: skip
    assert [(s.kind, s.name, s.text) for s in found["d1"]] == [
        ("tool_call", "find", "C1"), ("llm_call", "", "answer a1"), ("tool_call", "cancel", "done")]  # fmt: skip
    assert found["d2"] == ()


def test_a_result_that_comes_after_the_next_decision_still_belongs_to_its_own():
    found = steps_of(asking("d1", "user"), asking("d2", "user"), tool("t1", "find", {}, "late", "d1"))
    assert [s.text for s in found["d1"]] == ["late"] and found["d2"] == ()


@pytest.mark.parametrize(
    ("result", "y", "status", "error_class"),
    [
        ("order A1: ok", {}, "ok", ""),
        ("Error: user not found", {}, "error", "not_found"),
        ('{"error": "reason is a required property"}', {}, "error", "invalid_arguments"),
        ("gone", {"status": "error", "error": {"type": "rate_limited"}}, "error", "rate_limited"),
        ([{"type": "text", "text": "failed: too late"}], {}, "error", "tool_error"),
    ],
)
def test_a_result_that_says_it_failed_is_a_failure_whatever_the_client_reported(result, y, status, error_class):
    (step,) = steps_of(asking("d1", "user"), tool("t1", "find", '{"a": 1}', result, **y))["d1"]
    assert (step.status, step.error_class, step.arguments) == (status, error_class, {"a": 1})


def test_arguments_that_are_no_object_are_none():
    (step,) = steps_of(asking("d1", "user"), tool("t1", "find", '{"a": 1}{"b": 2}', "x"))["d1"]
    assert step == Step("tool_call", "find", None, "ok", "", "x", "t1") and not step.failed


@pytest.mark.skipif(not DATA.is_dir(), reason=REASON)
def test_every_tool_call_of_real_sessions_is_a_step_of_one_decision():
    data = (DATA / "tau1-airline" / "gpt-4o-airline.json").read_bytes()
    made = convert.get("tau-bench").read(data, convert.ReadOptions("airline", "gpt-4o")).records
    records = [r for r in map(plain, itertools.islice(made, 3000)) if r]
    events = [r for r in records if r["record"] == "event"]
    trajectories = sorted({e["trajectory_id"] for e in events})[:-1]
    assert len(trajectories) > 5
    whole = 0
    for id in trajectories:
        mine = [e for e in events if e["trajectory_id"] == id]
        steps = [s for found in steps_by(mine).values() for s in found if s.kind == "tool_call"]
        whole += len(steps)
        assert sorted(s.event_id for s in steps) == sorted(e["id"] for e in mine if e["kind"] == "tool_call")
    assert whole > 20


def test_what_a_turn_cost_counts_the_calls_that_read_results():
    records = [asking("d1", "user"), tool("t1", "find", "{}", "x"), asking("d2", "tool")]
    usage = {"m": {"usage": {"input_tokens": 70, "output_tokens": 7}}, "duration_ms": 20.0}
    told = [{**r, **usage} if r["kind"] == "llm_call" else r for r in records]
    (known,) = cases_of("northwind", told, lambda _: [])
    (unknown,) = cases_of("northwind", records, lambda _: [])
    assert (known.input_tokens, known.later_tokens, known.later_ms) == (70, (70, 7), 20.0)
    assert unknown.later_tokens is None


def plain(item):
    record = msgspec.to_builtins(item)
    return record if isinstance(record, dict) and record.get("record") == "event" else None


def steps_by(events):
    first, decisions = True, []
    for e in events:
        if e["kind"] == "user_message":
            first = True
        elif e["kind"] == "llm_call" and first:
            decisions.append(e["id"])
            first = False
    return steps_by_decision(events, decisions)
