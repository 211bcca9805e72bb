"""Reading the event log: from any process, while the gateway writes."""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from atdp import chain
from atdp.canonical import digest, digest_bytes
from services.proxy import parts, tables

Cursor = dict[str, int]
"""How far a consumer has read: the last position seen, by tenant. Hand it back to go on exactly there."""


class TrajectoryRow(NamedTuple):
    tenant: str
    trajectory_id: str
    session_id: str | None
    agent: str
    opened_at: str
    last_at: str
    closed: str | None
    """Why it ended (`outcome`, `ended`, `idle`); None while it is open."""
    events: int
    """Records in the chain, the header not counted."""


class StoreReader:
    """Read-only access to every tenant's log under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._connections: dict[str, sqlite3.Connection] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def tenants(self) -> list[str]:
        """Tenants that have a log."""
        return sorted(path.stem for path in self._root.glob("*.sqlite"))

    def trajectories(
        self, tenant: str, agent: str | None = None, since: str | None = None, limit: int | None = None
    ) -> list[TrajectoryRow]:
        """Trajectories, newest first; `since` is an RFC 3339 time that `last_at` must have reached."""
        rows = self._rows(
            tenant,
            "SELECT trajectory_id, session_id, agent, opened_at, last_at, closed, next_seq - 1 FROM trajectories"
            " WHERE (?1 IS NULL OR agent=?1) AND (?2 IS NULL OR last_at>=?2) ORDER BY rowid DESC LIMIT ?3",
            agent, since, -1 if limit is None else limit,
        )  # fmt: skip
        return [TrajectoryRow(tenant, *row) for row in rows]

    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]:
        """The chain of a trajectory: header, events, annotations, in `seq` order."""
        rows = self._rows(tenant, "SELECT body FROM records WHERE trajectory_id=? ORDER BY seq", trajectory_id)
        return [orjson.loads(row[0]) for row in rows]

    def events(
        self,
        agent: str,
        tenant: str | None = None,
        after: Cursor | None = None,
        kinds: Iterable[str] | None = None,
        limit: int = 1000,
    ) -> tuple[list[tuple[str, dict[str, Any]]], Cursor]:
        """Events and annotations of an agent in the order they were committed, and where to go on.

        `kinds` are event kinds (`llm_call`, …) and annotation kinds (`reward`, …); None is all.
        """
        cursor = dict(after or {})
        wanted = None if kinds is None else list(kinds)
        sources = [
            self._after(name, agent, cursor.get(name, 0), wanted, limit)
            for name in ([tenant] if tenant is not None else self.tenants())
        ]
        found: list[tuple[str, dict[str, Any]]] = []
        for _, name, position, body in islice(heapq.merge(*sources), limit):
            found.append((name, orjson.loads(body)))
            cursor[name] = position
        return found, cursor

    def contexts(self, tenant: str, id: str) -> dict[str, Any] | None:
        """The context record an event's `ctx` names."""
        row = self._row(tenant, "SELECT body FROM contexts WHERE id=?", id)
        return orjson.loads(row[0]) if row else None

    def tools(self, tenant: str, context_id: str) -> list[dict[str, Any]]:
        """The tools of a context as the client sent them, in order."""
        context = self.contexts(tenant, context_id) or {"body": {}}
        return [orjson.loads(self.part(tenant, tool["schema"])) for tool in context["body"].get("tools", ())]

    def part(self, tenant: str, digest: str) -> bytes:
        """Content kept under a digest; raises `KeyError` when this tenant has none such."""
        data = self._part(tenant, digest)
        if data is None:
            raise KeyError(digest)
        return data

    def record(self, tenant: str, id: str) -> dict[str, Any] | None:
        """One event or annotation by its id, as stored."""
        row = self._row(tenant, "SELECT body FROM records WHERE id=?", id)
        return orjson.loads(row[0]) if row else None

    def find_event(self, event_id: str) -> tuple[str, str] | None:
        """(tenant, trajectory) of an event, whoever's it is: for operators, not for tenants."""
        for tenant in self.tenants():
            row = self._row(tenant, "SELECT trajectory_id FROM records WHERE id=?", event_id)
            if row:
                return tenant, row[0]
        return None

    def resolve(self, tenant: str, record: dict[str, Any]) -> dict[str, Any]:
        """The record with content loaded, and message and token prefixes written out."""
        whole = parts.internalize(record, lambda digest: self._part(tenant, digest))
        messages = whole.get("o", {}).get("messages")
        if isinstance(messages, dict) and "prefix" in messages:
            whole["o"]["messages"] = self._messages(tenant, messages)
        ids = whole.get("tokens", {}).get("prompt_token_ids")
        if isinstance(ids, dict) and "prefix" in ids:
            whole["tokens"]["prompt_token_ids"] = self._prompt_ids(tenant, ids)
        return whole

    def verify(self, tenant: str, trajectory_id: str) -> list[str]:
        """What is wrong with a trajectory's chain and the content it names; empty when nothing is.

        All as of one moment, so that a gateway that writes meanwhile is no alteration.
        """
        with self._snapshot(tenant):
            return self._verify(tenant, trajectory_id)

    def _verify(self, tenant: str, trajectory_id: str) -> list[str]:
        head = self._row(tenant, "SELECT next_seq, head FROM trajectories WHERE trajectory_id=?", trajectory_id)
        if head is None:
            return [f"{trajectory_id}: no such trajectory"]
        records = self.records(tenant, trajectory_id)
        problems = chain.verify(records)
        if len(records) != head[0] or not records or records[-1]["hash"] != head[1]:
            problems.append(f"{trajectory_id}: the chain does not end where the store says it does")
        for id in sorted({record["ctx"] for record in records if "ctx" in record}):
            context = self.contexts(tenant, id)
            if context is None or digest(context["body"]) != id:
                problems.append(f"{id}: the context is missing or was altered")
        for ref in sorted({ref for record in records for ref in parts.references(record)}):
            data = self._part(tenant, ref)
            if data is None or digest_bytes(data) != ref:
                problems.append(f"{ref}: the content is missing or was altered")
        return problems

    def _messages(self, tenant: str, form: dict[str, Any]) -> list[dict[str, Any]]:
        forms: list[dict[str, Any]] = []
        answers: list[dict[str, Any]] = []
        current: Any = form
        while isinstance(current, dict):
            call = self._whole(tenant, current["prefix"])
            forms.append(current)
            answers.append(_without(call["a"]["messages"][0], "finish_reason"))
            current = call["o"]["messages"]
        messages: list[dict[str, Any]] = list(current)
        for each, answer in zip(reversed(forms), reversed(answers), strict=True):
            messages.append(answer)
            for change in each.get("changed", ()):
                messages[change["at"]] = change["message"]
            messages += [self._message(tenant, item) for item in each["append"]]
        return messages

    def _message(self, tenant: str, item: dict[str, Any]) -> dict[str, Any]:
        if "event" not in item:
            return item
        event = self._whole(tenant, item["event"])
        if event["kind"] == "tool_call":
            response = {"type": "tool_call_response", "id": event["a"].get("call_id"), "response": event["y"]["result"]}
            return {"role": "tool", "parts": [response]}
        return event["o"]["messages"][0]

    def _prompt_ids(self, tenant: str, form: dict[str, Any]) -> list[int]:
        pieces: list[list[int]] = []
        current: Any = form
        while isinstance(current, dict):
            tokens = self._whole(tenant, current["prefix"])["tokens"]
            pieces += [current["append"], tokens["completion_token_ids"]]
            current = tokens["prompt_token_ids"]
        pieces.append(current)
        return [id for piece in reversed(pieces) for id in piece]

    def _whole(self, tenant: str, id: str) -> dict[str, Any]:
        record = self.record(tenant, id)
        if record is None:
            raise KeyError(f"{id} is named as a prefix but is not in the log of {tenant}")
        return parts.internalize(record, lambda digest: self._part(tenant, digest))

    def _after(
        self, tenant: str, agent: str, position: int, kinds: list[str] | None, limit: int
    ) -> list[tuple[float, str, int, bytes]]:
        rows = self._rows(
            tenant,
            "SELECT committed, position, body FROM records WHERE position>?1 AND agent=?2 AND record!='trajectory'"
            " AND (?3 IS NULL OR kind IN (SELECT value FROM json_each(?3))) ORDER BY position LIMIT ?4",
            position, agent, None if kinds is None else orjson.dumps(kinds).decode(), limit,
        )  # fmt: skip
        return [(row[0], tenant, row[1], row[2]) for row in rows]

    def _part(self, tenant: str, digest: str) -> bytes | None:
        row = self._row(tenant, "SELECT data FROM parts WHERE digest=?", digest)
        return row[0] if row else None

    def _row(self, tenant: str, sql: str, *values: Any) -> sqlite3.Row | None:
        rows = self._rows(tenant, sql, *values)
        return rows[0] if rows else None

    def _rows(self, tenant: str, sql: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            connection = self._connection(tenant)
            return connection.execute(sql, values).fetchall() if connection is not None else []

    @contextmanager
    def _snapshot(self, tenant: str) -> Iterator[None]:
        """Whatever is read in here is as of one moment."""
        with self._lock:
            connection = self._connection(tenant)
            if connection is None:
                yield
                return
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    def _connection(self, tenant: str) -> sqlite3.Connection | None:
        connection = self._connections.get(tenant)
        if connection is None:
            connection = tables.open_for_reading(self._root, tenant)
            if connection is not None:
                self._connections[tenant] = connection
        return connection


def _without(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in message.items() if k != key}
