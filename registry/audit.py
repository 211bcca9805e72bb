"""The audit log: append-only, its own hash chain, one entry for whatever changed what users are served."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from atdp.canonical import digest
from registry.control import now, transaction


@dataclass(frozen=True)
class Entry:
    seq: int
    at: str
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    prev_hash: str | None
    hash: str


def append(
    connection: sqlite3.Connection,
    actor: str,
    action: str,
    subject: str,
    detail: dict[str, Any] | None = None,
) -> Entry:
    """Write one entry, in the caller's transaction if there is one."""
    with transaction(connection):
        last = connection.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
        seq, prev_hash = (last["seq"] + 1, last["hash"]) if last else (0, None)
        body: dict[str, Any] = {
            "seq": seq, "at": now(), "actor": actor, "action": action, "subject": subject,
            "detail": detail or {}, "prev_hash": prev_hash,
        }  # fmt: skip
        entry = Entry(**body, hash=digest(body))
        connection.execute(
            "INSERT INTO audit VALUES (?,?,?,?,?,?,?,?)",
            (entry.seq, entry.at, actor, action, subject, json.dumps(entry.detail), prev_hash, entry.hash),
        )
    return entry


def entries(connection: sqlite3.Connection, subject: str | None = None) -> list[Entry]:
    where, arguments = ("WHERE subject = ?", (subject,)) if subject else ("", ())
    rows = connection.execute(f"SELECT * FROM audit {where} ORDER BY seq", arguments)  # noqa: S608
    return [Entry(**{**dict(row), "detail": json.loads(row["detail"])}) for row in rows]


def verify(connection: sqlite3.Connection) -> list[str]:
    """What is wrong with the chain, one line a finding; empty means nobody altered it."""
    problems = []
    prev_hash: str | None = None
    for position, entry in enumerate(entries(connection)):
        body = {k: v for k, v in vars(entry).items() if k != "hash"}
        if entry.seq != position:
            problems.append(f"entry {position} is missing (found {entry.seq})")
        if entry.prev_hash != prev_hash:
            problems.append(f"entry {entry.seq} does not follow its predecessor")
        if digest(body) != entry.hash:
            problems.append(f"entry {entry.seq} was altered")
        prev_hash = entry.hash
    return problems
