"""What can be said about one record without seeing any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from atdp import chain, clock, schema
from atdp.canonical import canonical, digest
from atdp.standins import stand_ins

_TIMES = ("time", "observed_at")
OPERATIONS = frozenset(
    {"tool_call", "retrieval", "memory_read", "memory_write", "file_op", "browser_op", "code_exec", "approval",
     "handoff", "guardrail"}
)  # fmt: skip
"""The ten kinds whose shape is name, arguments → result."""
_OPERATION_FIELDS = ("name", "call_id", "arguments", "permissions", "decision")
_PLAIN_HASHES = ("sha256:", "sha1:", "md5:", "sha512:")

Problem = tuple[str, str]
"""(rule, message)"""


def problems(record: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with a record taken alone; nothing more is said about one that is not of the schema."""
    try:
        schema.decode(record)
    except msgspec.ValidationError as error:
        yield "schema", str(error)
        return
    try:
        canonical(record)
    except ValueError as error:
        yield "canonical", str(error)
        return
    yield from _times(record)
    yield from _stand_ins(record)
    match record["record"]:
        case "context":
            if digest(record["body"]) != record["id"]:
                yield "context_id", f"the id of the body is {digest(record['body'])}"
            return
        case "event":
            yield from _shape(record)
            yield from _token_counts(record)
        case "annotation":
            yield from _annotation(record)
    if chain.record_hash(record) != record["hash"]:
        yield "hash", "the record was altered, or its hash was made of another form than RFC 8785"


def _times(record: dict[str, Any]) -> Iterator[Problem]:
    for key in _TIMES:
        if key in record:
            try:
                clock.parse(record[key])
            except ValueError as error:
                yield "time", f"{key}: {error}"


def _stand_ins(record: dict[str, Any]) -> Iterator[Problem]:
    for kind, value, whole in stand_ins(record):
        if not whole:
            yield "stand_in", f"{{{', '.join(value)}}} looks like a {kind} stand-in but is not one"
        elif kind == "sealed" and value["commit"].startswith(_PLAIN_HASHES):
            yield "commitment", f"{value['commit'][:20]} of {value['sealed']} can be guessed: use a keyed commitment"


def _shape(event: dict[str, Any]) -> Iterator[Problem]:
    kind, action = event["kind"], event.get("a", {})
    operation = [key for key in _OPERATION_FIELDS if key in action]
    if "tokens" in event and kind != "llm_call":
        yield "shape", f"{kind} has tokens; only an llm_call has"
    if kind == "llm_call":
        if operation:
            yield "shape", f"llm_call has {', '.join('a.' + key for key in operation)}, fields of an operation"
        if event["y"]["status"] == "ok" and "messages" not in action:
            yield "shape", "an llm_call that ended ok has its answer in a.messages"
    elif kind in OPERATIONS:
        if "name" not in action:
            yield "shape", f"{kind} has no a.name"
        if "messages" in action:
            yield "shape", f"{kind} has a.messages, a field of llm_call"
    elif kind == "user_message":
        if not isinstance(event.get("o", {}).get("messages"), list):
            yield "shape", "user_message has its words in o.messages"
        if action:
            yield "shape", "user_message has an action"
    elif kind == "outcome" and "messages" in action:
        yield "shape", "outcome has a.messages, a field of llm_call"


def _annotation(annotation: dict[str, Any]) -> Iterator[Problem]:
    if annotation.get("retracted"):
        if "supersedes" not in annotation:
            yield "annotation", "a retraction names what it retracts in `supersedes`"
        return
    kind = annotation["kind"]
    if kind == "preference" and "demonstration" in annotation.get("ext", {}):
        return
    needs: dict[str, tuple[str, ...]] = {
        "reward": ("value", "label"),
        "preference": ("chosen", "rejected"),
        "governance": ("patch",),
        "replay_check": ("label",),
        "critique": ("explanation", "label", "value"),
        "label": ("label", "value"),
    }
    if not any(key in annotation for key in needs[kind]):
        yield "annotation", f"a {kind} needs {' or '.join(needs[kind])}"


def _token_counts(event: dict[str, Any]) -> Iterator[Problem]:
    tokens = event.get("tokens", {})
    if not tokens or event.get("ext", {}).get("tokens_incomplete") is True:
        return
    usage = event.get("m", {}).get("usage", {})
    counts = {
        "m.usage.output_tokens": usage.get("output_tokens"),
        "tokens.completion_token_ids": _length(tokens.get("completion_token_ids")),
        "tokens.logprobs": _length(tokens.get("logprobs")),
        "tokens.policy_versions": sum(run[0] for run in tokens["policy_versions"])
        if "policy_versions" in tokens
        else None,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    if len(set(known.values())) > 1:
        yield "tokens_count", "of one completion: " + ", ".join(f"{name} {count}" for name, count in known.items())
    prompt, told = _length(tokens.get("prompt_token_ids")), usage.get("input_tokens")
    if prompt is not None and told is not None and prompt != told:
        yield "tokens_count", f"tokens.prompt_token_ids {prompt}, m.usage.input_tokens {told}"


def _length(value: Any) -> int | None:
    """How many there are; None for what is kept apart, sealed or continued from another call."""
    return len(value) if isinstance(value, list) else None
