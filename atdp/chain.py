"""The hash chain of a trajectory: `hash = sha256(JCS(record without hash))`, each naming the one before.

All records of a trajectory but its contexts share one gap-free `seq`, so that rewards and
consent changes are as hard to alter unnoticed as actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
import orjson

from atdp.canonical import digest, digest_bytes, plain, sorted_json
from atdp.records import AnnotationDraft, EventDraft, TrajectoryDraft

Draft = TrajectoryDraft | EventDraft | AnnotationDraft
"""What gets a place in a chain."""


def seal(body: dict[str, Any], seq: int, prev_hash: str | None) -> dict[str, Any]:
    """The record with its place in the chain; `body` has none yet and is not changed."""
    record = {**body, "seq": seq, "prev_hash": prev_hash}
    record["hash"] = digest(record)
    return record


def sealed_json(body: dict[str, Any], seq: int, prev_hash: str | None) -> tuple[str, bytes]:
    """The hash of `seal`'s record, and that record as JSON.

    Where the canonical form is the record's own JSON, that is written once for both.
    """
    record = {**body, "seq": seq, "prev_hash": prev_hash}
    data = plain(record)
    if data is not None:
        return hashed(data)
    record["hash"] = hash = digest(record)
    return hash, orjson.dumps(record)


def draft_json(draft: Draft, seq: int, prev_hash: str | None) -> bytes:
    """A draft in its place in the chain as JSON with sorted keys; where `is_canonical` says so, `hashed` seals it.

    Raises `TypeError`, `ValueError`, `OverflowError` or `RecursionError` for what can't be written as JSON.
    """
    form, values = _chained(type(draft))
    return sorted_json(form(seq, prev_hash, *values(draft)))


def hashed(data: bytes) -> tuple[str, bytes]:
    """The hash of a record whose canonical form this is, and the record as JSON with its hash."""
    hash = digest_bytes(data)
    return hash, b'%b,"hash":"%b"}' % (data[:-1], hash.encode())


@cache
def _chained(kind: type[Draft]) -> tuple[Callable[..., msgspec.Struct], Callable[[Draft], tuple[Any, ...]]]:
    """A struct with the fields of a draft and its place in the chain, and what gets a draft's values in their order."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    form = msgspec.defstruct(
        f"Chained{kind.__name__}",
        [("seq", int), ("prev_hash", str | None), *((name, Any) for name in names)],
        tag_field=kind.__struct_config__.tag_field,
        tag=kind.__struct_config__.tag,
    )
    return form, attrgetter(*names)


def record_hash(record: dict[str, Any]) -> str:
    """What the record's `hash` must be."""
    return digest({key: value for key, value in record.items() if key != "hash"})


def verify(records: Iterable[dict[str, Any]]) -> list[str]:
    """What is wrong with a trajectory's records in `seq` order; empty when the chain holds."""
    problems: list[str] = []
    expected_seq, expected_prev = 0, None
    for record in records:
        name = record.get("id") or record.get("trajectory_id")
        if record["seq"] != expected_seq:
            problems.append(f"{name}: seq is {record['seq']}, expected {expected_seq}")
        if record["prev_hash"] != expected_prev:
            problems.append(f"{name}: prev_hash does not name the record before it")
        if record["hash"] != record_hash(record):
            problems.append(f"{name}: the record was altered, its hash does not match its content")
        expected_seq, expected_prev = record["seq"] + 1, record["hash"]
    return problems
