"""The hash chain of a trajectory: `hash = sha256(JCS(record without hash))`, each naming the one before.

All records of a trajectory but its contexts share one gap-free `seq`, so that rewards and
consent changes are as hard to alter unnoticed as actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from atdp.canonical import digest, digest_bytes, plain


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
        hash = digest_bytes(data)
        return hash, b'%b,"hash":"%b"}' % (data[:-1], hash.encode())
    record["hash"] = hash = digest(record)
    return hash, orjson.dumps(record)


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
