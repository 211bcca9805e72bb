"""Every conformance rule finds what it is there for, and nothing in a file that conforms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from atdp import chain
from atdp.canonical import digest
from atdp.conformance import RULES, Finding, check

Record = dict[str, Any]
TIME = "2026-01-01T00:00:00.000Z"
BODY = {"model": {"name": "m"}}
SEALED = {"sealed": "blob_1", "commit": "hmac-sha256:91c2", "labels": ["pii.phone"], "bytes": 14}


def said(role: str, content: Any) -> Record:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def event(id: str, kind: str, **fields: Any) -> Record:
    common = {"atdp": "1.0", "record": "event", "trajectory_id": "t", "time": TIME, "ctx": digest(BODY)}
    return {**common, "id": id, "kind": kind, "y": {"status": "ok"}, **fields}


def drafts() -> list[Record]:
    """One of everything: a conversation of two model calls, a tool between them, a late reward."""
    return [
        {"atdp": "1.0", "record": "context", "id": digest(BODY), "body": BODY},
        {
            "atdp": "1.0",
            "record": "trajectory",
            "trajectory_id": "t",
            "time": TIME,
            "agent": {"name": "a"},
            "gov": {"tenant": "x"},
        },
        event("e1", "user_message", o={"messages": [said("user", "hi")]}),
        event(
            "e2",
            "llm_call",
            causes=[{"id": "e1", "rel": "input"}],
            o={"messages": [said("user", "hi")]},
            a={"messages": [said("assistant", "calling")]},
            m={"usage": {"input_tokens": 3, "output_tokens": 2}},
            tokens={
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.1, -0.2],
                "policy_versions": [[2, "v1"]],
            },
        ),
        event(
            "e3",
            "tool_call",
            parent_id="e2",
            causes=[{"id": "e2", "rel": "decided_by"}],
            a={"name": "f", "call_id": "c", "arguments": {}},
            y={"status": "ok", "result": "done"},
        ),
        event(
            "e4",
            "llm_call",
            causes=[{"id": "e3", "rel": "input"}],
            o={"messages": {"prefix": "e2", "append": [{"event": "e3"}]}},
            a={"messages": [said("assistant", "done")]},
            m={"usage": {"input_tokens": 6, "output_tokens": 1}},
            tokens={"prompt_token_ids": {"prefix": "e2", "append": [6]}, "completion_token_ids": [7]},
        ),
        {
            "atdp": "1.0",
            "record": "annotation",
            "id": "n1",
            "trajectory_id": "t",
            "kind": "reward",
            "name": "resolved",
            "targets": [{"trajectory_id": "t", "event_id": "e4"}],
            "source": {"kind": "human"},
            "time": TIME,
            "value": 1.0,
        },
    ]


def chained(records: list[Record]) -> list[Record]:
    result: list[Record] = []
    previous: str | None = None
    seq = 0
    for record in records:
        if record["record"] != "context":
            record = chain.seal(record, seq, previous)
            seq, previous = seq + 1, record["hash"]
        result.append(record)
    return result


def lines(records: list[Record]) -> list[str]:
    return [json.dumps(record) for record in records]


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


def with_change(index: int, **changes: Any) -> list[str]:
    """The file with one record changed before it was chained."""
    records = drafts()
    records[index] = {k: v for k, v in {**records[index], **changes}.items() if v is not None}
    return lines(chained(records))


def altered(index: int, **changes: Any) -> list[str]:
    """The file with one record changed after it was chained."""
    records = chained(drafts())
    records[index] = {**records[index], **changes}
    return lines(records)


def rechained(index: int, **changes: Any) -> list[str]:
    """The file with one record changed after it was chained, its own hash made anew."""
    records = chained(drafts())
    records[index] = {**records[index], **changes}
    records[index]["hash"] = chain.record_hash(records[index])
    return lines(records)


BROKEN: dict[str, Callable[[], list[str]]] = {
    "json": lambda: [*lines(chained(drafts())), '{"atdp": "1.0", "atdp": "1.0"}'],
    "schema": lambda: with_change(2, kind="llmcall"),
    "time": lambda: with_change(2, time="2026-01-01 00:00"),
    "canonical": lambda: altered(3, ext={"id": 2**60}),
    "hash": lambda: altered(3, duration_ms=4.0),
    "prev_hash": lambda: rechained(3, prev_hash=digest({})),
    "seq": lambda: lines([r for r in chained(drafts()) if r.get("id") != "e3"]),
    "header": lambda: lines(chained([drafts()[0], *drafts()[2:]])),
    "context_id": lambda: with_change(0, body={"model": {"name": "other"}}),
    "context": lambda: lines(chained(drafts())[1:]),
    "id": lambda: with_change(6, id="e4"),
    "reference": lambda: with_change(2, parent_id="nowhere"),
    "order": lambda: with_change(3, causes=[{"id": "e2", "rel": "input"}]),
    "prefix": lambda: with_change(5, o={"messages": {"prefix": "e3", "append": []}}, tokens=None),
    "shape": lambda: with_change(4, a={"arguments": {}}),
    "annotation": lambda: with_change(6, value=None),
    "stand_in": lambda: with_change(4, y={"status": "ok", "result": {"sealed": "blob_1", "labels": []}}),
    "commitment": lambda: with_change(4, y={"status": "ok", "result": {**SEALED, "commit": "sha256:91c2"}}),
    "sealed_tokens": lambda: with_change(3, o={"messages": [said("user", SEALED)]}),
    "tokens_count": lambda: with_change(3, m={"usage": {"input_tokens": 3, "output_tokens": 9}}),
}


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_what_breaks_a_rule_is_found(rule: str) -> None:
    assert rule in rules(list(check(BROKEN[rule]())))


def test_a_file_that_conforms_has_no_findings() -> None:
    assert list(check(lines(chained(drafts())))) == []


def test_a_finding_names_its_line() -> None:
    (finding,) = check(with_change(6, value=None))
    assert (finding.line, finding.rule) == (7, "annotation")


def test_a_sealed_prefix_makes_the_next_calls_token_ids_a_leak_too() -> None:
    records = drafts()
    records[3]["o"]["messages"] = [said("user", SEALED)]
    records[3]["tokens"] = {"prompt_token_ids": SEALED, "completion_token_ids": SEALED}
    found = list(check(lines(chained(records))))
    assert [(finding.line, finding.rule) for finding in found] == [(6, "sealed_tokens")]


def test_token_ids_that_do_not_add_up_are_no_finding_when_the_event_says_so() -> None:
    assert not list(check(with_change(3, m={"usage": {"output_tokens": 9}}, ext={"tokens_incomplete": True})))


def test_a_reference_to_another_file_is_no_finding_when_it_is_listed_as_external() -> None:
    outside = {"causes": [{"id": "elsewhere", "rel": "retry_of"}]}
    assert rules(list(check(with_change(2, **outside)))) == {"reference"}
    assert not list(check(with_change(2, **outside, ext={"external": ["elsewhere"]})))


def test_an_annotation_may_be_about_a_trajectory_that_is_not_in_the_file() -> None:
    assert not list(check(with_change(6, targets=[{"trajectory_id": "other", "event_id": "e9"}])))


def test_of_an_excerpt_only_what_each_record_says_alone_is_asked() -> None:
    excerpt = lines(chained(drafts())[3:5])
    assert rules(list(check(excerpt))) == {"seq", "context", "reference"}
    assert not list(check(excerpt, excerpt=True))
    assert rules(list(check(altered(3, duration_ms=4.0), excerpt=True))) == {"hash"}


def test_a_demonstration_is_a_preference_without_sides() -> None:
    demonstration = {
        "kind": "preference",
        "value": None,
        "ext": {"demonstration": {"role": "assistant", "content": "x"}},
    }
    assert not list(check(with_change(6, **demonstration)))
