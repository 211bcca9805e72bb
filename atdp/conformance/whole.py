"""What can only be said about a file: chains, references, prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atdp.conformance.rules import Finding
from atdp.standins import hidden


class _Seen(NamedTuple):
    """What has to be remembered of a record."""

    trajectory_id: str
    seq: int
    record: str
    kind: str
    answered: bool
    """Has it messages asked and answered (an llm_call) or held (another event)?"""
    tokens: bool
    hidden: bool
    """Is any part of what the model saw or said sealed or redacted?"""


class _Reference(NamedTuple):
    line: int
    rule: str
    what: str
    id: str


@dataclass
class _Chain:
    next_seq: int = 0
    head: str | None = None


@dataclass
class Whole:
    """Takes a file's records in order; `finish` tells what was only clear at the end."""

    _chains: dict[str, _Chain] = field(default_factory=dict)
    _records: dict[str, _Seen] = field(default_factory=dict)
    _contexts: set[str] = field(default_factory=set)
    _named_contexts: dict[str, int] = field(default_factory=dict)
    _references: list[_Reference] = field(default_factory=list)

    def add(self, line: int, record: dict[str, Any]) -> Iterator[Finding]:
        """Take in one record that is of the schema."""
        if record["record"] == "context":
            self._contexts.add(record["id"])
            return
        yield from self._chained(line, record)
        if record["record"] == "trajectory":
            return
        yield from self._named(line, record)
        if record["record"] == "event":
            self._named_contexts.setdefault(record["ctx"], line)
            yield from self._prefixes(line, record)
        yield from self._remember(line, record)

    def finish(self) -> Iterator[Finding]:
        """What is named and nowhere in the file."""
        for id, line in self._named_contexts.items():
            if id not in self._contexts:
                yield Finding(line, "context", f"{id} is named by an event and not in the file")
        for reference in self._references:
            if reference.id not in self._records:
                yield Finding(reference.line, reference.rule, f"{reference.what} {reference.id} is not in the file")

    def _chained(self, line: int, record: dict[str, Any]) -> Iterator[Finding]:
        chain = self._chains.setdefault(record["trajectory_id"], _Chain())
        if record["seq"] != chain.next_seq:
            yield Finding(line, "seq", f"seq is {record['seq']}, expected {chain.next_seq}")
        elif record["prev_hash"] != chain.head:
            yield Finding(line, "prev_hash", "it does not name the record before it in the trajectory")
        if (record["record"] == "trajectory") != (record["seq"] == 0):
            yield Finding(line, "header", f"a record of type {record['record']} has seq {record['seq']}")
        chain.next_seq, chain.head = record["seq"] + 1, record["hash"]

    def _named(self, line: int, record: dict[str, Any]) -> Iterator[Finding]:
        """References: those that must lie in the past are checked now, the rest at the end."""
        external = set(record.get("ext", {}).get("external") or ())
        past = [("cause", cause["id"]) for cause in record.get("causes", ())]
        if "supersedes" in record:
            past.append(("superseded annotation", record["supersedes"]))
        other = [("evidence", id) for id in record.get("evidence", ())]
        if "parent_id" in record:
            other.append(("parent", record["parent_id"]))
        sides = [record[side] for side in ("chosen", "rejected") if side in record]
        other += [
            ("target", target["event_id"])
            for target in [*record.get("targets", ()), *sides]
            # what is in another trajectory's chain need not travel with this one
            if "event_id" in target and target["trajectory_id"] == record["trajectory_id"]
        ]
        for what, id in past:
            known = self._records.get(id)
            if id in external:
                continue
            if known is None:
                self._references.append(_Reference(line, "reference", what, id))
                if id == record["id"]:
                    yield Finding(line, "order", f"{what} {id} is the record itself")
            elif known.trajectory_id == record["trajectory_id"] and known.seq >= record["seq"]:
                yield Finding(line, "order", f"{what} {id} comes after it")
        self._references += [_Reference(line, "reference", what, id) for what, id in other if id not in external]

    def _prefixes(self, line: int, event: dict[str, Any]) -> Iterator[Finding]:
        messages = event.get("o", {}).get("messages")
        if isinstance(messages, dict):
            yield from self._continues(line, event, messages["prefix"], "o.messages")
            for item in messages["append"]:
                if "event" in item and "parts" not in item:
                    known = self._records.get(item["event"])
                    if known is None or known.kind == "llm_call" or not known.answered:
                        yield Finding(line, "prefix", f"{{event: {item['event']}}} names no earlier message")
        ids = event.get("tokens", {}).get("prompt_token_ids")
        if isinstance(ids, dict) and "prefix" in ids:
            yield from self._continues(line, event, ids["prefix"], "tokens.prompt_token_ids")

    def _continues(self, line: int, event: dict[str, Any], id: str, what: str) -> Iterator[Finding]:
        known = self._records.get(id)
        if known is None or known.kind != "llm_call" or known.trajectory_id != event["trajectory_id"]:
            yield Finding(line, "prefix", f"{what}: {id} is no earlier llm_call of this trajectory")
        elif not (known.tokens if what.startswith("tokens") else known.answered):
            yield Finding(line, "prefix", f"{what}: {id} has nothing to continue")

    def _remember(self, line: int, record: dict[str, Any]) -> Iterator[Finding]:
        if record["id"] in self._records:
            yield Finding(line, "id", f"{record['id']} is there already")
            return
        observed, action = record.get("o", {}), record.get("a", {})
        messages = observed.get("messages")
        concealed = hidden([observed, action]) or any(
            self._records[id].hidden for id in _continued(messages) if id in self._records
        )
        tokens = record.get("tokens", {})
        if record["record"] == "event" and concealed and any(map(_in_clear, _token_ids(tokens))):
            yield Finding(line, "sealed_tokens", "token ids in the clear beside text that is not")
        if record["kind"] == "llm_call":
            answered = messages is not None and "messages" in action
        else:
            answered = messages is not None or "result" in record.get("y", {})
        self._records[record["id"]] = _Seen(
            record["trajectory_id"], record["seq"], record["record"], record["kind"], answered,
            "prompt_token_ids" in tokens and "completion_token_ids" in tokens, concealed or hidden(record.get("y")),
        )  # fmt: skip


def _continued(messages: Any) -> list[str]:
    """The events a prompt is made of."""
    if not isinstance(messages, dict):
        return []
    return [messages["prefix"], *(item["event"] for item in messages["append"] if "event" in item)]


def _token_ids(tokens: dict[str, Any]) -> list[Any]:
    return [tokens[key] for key in ("prompt_token_ids", "completion_token_ids") if key in tokens]


def _in_clear(ids: Any) -> bool:
    if isinstance(ids, dict):
        return "sealed" not in ids and not ("prefix" in ids and not ids["append"])
    return bool(ids)
