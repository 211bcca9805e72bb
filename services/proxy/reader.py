"""Reading the event log: from any process, while the gateway writes, whatever database it is in."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from atdp import chain
from atdp.canonical import digest, digest_bytes
from evoplane.settings import Settings
from services.proxy import parts
from services.proxy.blobs import Blobs
from services.proxy.engines.base import Engine, Row
from services.proxy.engines.opening import open_blobs, open_engine
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.packing import unpack, unpack_content

Cursor = dict[str, int]
"""How far a consumer has read: the last position seen, by tenant. Hand it back to go on exactly there."""

_NO_LIMIT = 2**62
_ROW = "SELECT trajectory_id, session_id, agent, opened_at, last_at, closed, next_seq - 1 FROM trajectories"


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


def open_reader(settings: Settings) -> StoreReader:
    """The deployment's event log, for reading; close it after use. Everything raises `StorageFailed`."""
    return StoreReader(settings.store_dir, engine=open_engine(settings), blobs=open_blobs(settings))


class StoreReader:
    """Read-only access to every tenant's log; by default those in files under `root`."""

    def __init__(self, root: Path, *, engine: Engine | None = None, blobs: Blobs | None = None) -> None:
        self._connection = (engine or SqliteEngine(root)).reading()
        self._blobs = blobs or Blobs(str(root / "blobs"))

    def close(self) -> None:
        self._connection.close()

    def tenants(self) -> list[str]:
        """Tenants that have a log."""
        return self._connection.tenants()

    def trajectories(
        self,
        tenant: str,
        agent: str | None = None,
        since: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[TrajectoryRow]:
        """Trajectories, newest first; `since` is an RFC 3339 time that `last_at` must have reached.

        With `before`, those opened before that trajectory: the next page. It has to be of `agent`, where one is named.
        """
        rows = self._rows(
            tenant,
            _ROW + " WHERE (CAST(:agent AS TEXT) IS NULL OR agent=:agent)"  # noqa: S608
            " AND (CAST(:since AS TEXT) IS NULL OR last_at>=:since)"
            " AND (CAST(:before AS TEXT) IS NULL OR opened<"
            "(SELECT opened FROM trajectories WHERE trajectory_id=:before"
            " AND (CAST(:agent AS TEXT) IS NULL OR agent=:agent))) ORDER BY opened DESC LIMIT :limit",
            agent=agent,
            since=since,
            before=before,
            limit=_NO_LIMIT if limit is None else limit,
        )
        return [TrajectoryRow(tenant, *row) for row in rows]

    def trajectory(self, tenant: str, trajectory_id: str) -> TrajectoryRow | None:
        """One trajectory; None when this tenant has none of that id."""
        row = self._row(tenant, _ROW + " WHERE trajectory_id=:id", id=trajectory_id)
        return TrajectoryRow(tenant, *row) if row else None

    def in_session(self, tenant: str, agent: str, session_id: str, limit: int = 100) -> list[TrajectoryRow]:
        """The trajectories of an agent's session, newest first: another agent may have one of the same name."""
        rows = self._rows(
            tenant,
            _ROW + " WHERE session_id=:id AND agent=:agent ORDER BY opened DESC LIMIT :limit",
            id=session_id,
            agent=agent,
            limit=limit,
        )
        return [TrajectoryRow(tenant, *row) for row in rows]

    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]:
        """The chain of a trajectory: header, events, annotations, in `seq` order."""
        rows = self._rows(tenant, "SELECT body FROM records WHERE trajectory_id=:id ORDER BY seq", id=trajectory_id)
        return [orjson.loads(unpack(row[0])) for row in rows]

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
        row = self._row(tenant, "SELECT body FROM contexts WHERE id=:id", id=id)
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
        row = self._row(tenant, "SELECT body FROM records WHERE id=:id", id=id)
        return orjson.loads(unpack(row[0])) if row else None

    def find_event(self, event_id: str, tenant: str | None = None) -> tuple[str, str] | None:
        """(tenant, trajectory) of an event: this tenant's, or whoever's it is, which is for operators."""
        for name in self.tenants() if tenant is None else [tenant]:
            row = self._row(name, "SELECT trajectory_id FROM records WHERE id=:id", id=event_id)
            if row:
                return name, row[0]
        return None

    def session_of(self, tenant: str, trajectory_id: str) -> str | None:
        """The session a trajectory belongs to."""
        row = self._row(tenant, "SELECT session_id FROM trajectories WHERE trajectory_id=:id", id=trajectory_id)
        return row[0] if row else None

    def answer(self, tenant: str, answer_id: str) -> str | None:
        """The call that had an answer of this provider's id."""
        row = self._row(tenant, "SELECT event_id FROM answers WHERE id=:id", id=answer_id)
        return row[0] if row else None

    def sealed(self, tenant: str, id: str) -> bytes | None:
        """The ciphertext of a sealed leaf; None when there is none, or none any more."""
        row = self._row(tenant, "SELECT data FROM sealed WHERE id=:id", id=id)
        return bytes(row[0]) if row else None

    def trajectory_key(self, tenant: str, trajectory_id: str) -> tuple[int, bytes] | None:
        """A trajectory's data key: the version of the tenant's key that wraps it, and the wrapped key.

        None when it has none, or when it was erased.
        """
        row = self._row(
            tenant, "SELECT key_version, wrapped FROM trajectory_keys WHERE trajectory_id=:id", id=trajectory_id
        )
        return (row[0], bytes(row[1])) if row and row[1] is not None else None

    def resolve(self, tenant: str, record: dict[str, Any]) -> dict[str, Any]:
        """The record with content loaded, and message and token prefixes written out."""
        return self._resolve(tenant, record, {}, {})

    def resolve_all(self, tenant: str, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Records in the order of their chain, each as `resolve` gives it.

        A call's history is put together from the call before it, not from all of them: a long conversation takes as
        many reads as it has calls, not their square. The records share what they have in common: change none.
        """
        said: dict[str, list[dict[str, Any]]] = {}
        ids: dict[str, list[int]] = {}
        found = []
        for record in records:
            whole = self._resolve(tenant, record, said, ids)
            found.append(whole)
            if whole.get("kind") == "llm_call":
                messages, prompt = whole.get("o", {}).get("messages"), whole.get("tokens", {}).get("prompt_token_ids")
                if isinstance(messages, list):
                    said[whole["id"]] = messages
                if isinstance(prompt, list):
                    ids[whole["id"]] = prompt
        return found

    def _resolve(
        self, tenant: str, record: dict[str, Any], said: dict[str, list[dict[str, Any]]], known: dict[str, list[int]]
    ) -> dict[str, Any]:
        """`said` and `known` are the messages and prompt ids of calls that have been resolved already."""
        whole = parts.internalize(record, lambda digest: self._part(tenant, digest))
        messages = whole.get("o", {}).get("messages")
        if isinstance(messages, dict) and "prefix" in messages:
            whole["o"]["messages"] = self._messages(tenant, messages, said)
        ids = whole.get("tokens", {}).get("prompt_token_ids")
        if isinstance(ids, dict) and "prefix" in ids:
            whole["tokens"]["prompt_token_ids"] = self._prompt_ids(tenant, ids, known)
        return whole

    def verify(self, tenant: str, trajectory_id: str) -> list[str]:
        """What is wrong with a trajectory's chain and the content it names; empty when nothing is.

        All as of one moment, so that a gateway that writes meanwhile is no alteration.
        """
        with self.snapshot(tenant):
            return self._verify(tenant, trajectory_id)

    def _verify(self, tenant: str, trajectory_id: str) -> list[str]:
        head = self._row(tenant, "SELECT next_seq, head FROM trajectories WHERE trajectory_id=:id", id=trajectory_id)
        if head is None:
            return [f"{trajectory_id}: no such trajectory"]
        records, problems = self._readable(tenant, trajectory_id)
        problems += chain.verify(records)
        if len(records) != head[0] or not records or records[-1]["hash"] != head[1]:
            problems.append(f"{trajectory_id}: the chain does not end where the store says it does")
        for id in sorted({record["ctx"] for record in records if "ctx" in record}):
            context = self.contexts(tenant, id)
            if context is None or digest(context["body"]) != id:
                problems.append(f"{id}: the context is missing or was altered")
        for ref in sorted({ref for record in records for ref in parts.references(record)}):
            if not self._intact(tenant, ref):
                problems.append(f"{ref}: the content is missing or was altered")
        return problems

    def _readable(self, tenant: str, trajectory_id: str) -> tuple[list[dict[str, Any]], list[str]]:
        """The records that can be read, and what is to be said of the others."""
        records: list[dict[str, Any]] = []
        problems: list[str] = []
        for id, body in self._rows(
            tenant, "SELECT id, body FROM records WHERE trajectory_id=:id ORDER BY seq", id=trajectory_id
        ):
            try:
                records.append(orjson.loads(unpack(body)))
            except ValueError:
                problems.append(f"{id}: the record is damaged and can't be read")
        return records, problems

    def _intact(self, tenant: str, ref: str) -> bool:
        try:
            data = self._part(tenant, ref)
        except ValueError:
            return False
        return data is not None and digest_bytes(data) == ref

    def _messages(
        self, tenant: str, form: dict[str, Any], known: dict[str, list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        forms: list[dict[str, Any]] = []
        answers: list[dict[str, Any]] = []
        current: Any = form
        while isinstance(current, dict):
            call = self._whole(tenant, current["prefix"])
            forms.append(current)
            answers.append(_without(call["a"]["messages"][0], "finish_reason"))
            current = known.get(current["prefix"], call["o"]["messages"])
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
        if event["kind"] == "user_message":
            return event["o"]["messages"][0]
        response = {"type": "tool_call_response", "id": event["a"].get("call_id"), "response": event["y"]["result"]}
        return {"role": "tool", "parts": [response]}

    def _prompt_ids(self, tenant: str, form: dict[str, Any], known: dict[str, list[int]]) -> list[int] | dict[str, Any]:
        pieces: list[list[int]] = []
        current: Any = form
        while isinstance(current, dict):
            if "prefix" not in current:
                return form  # an earlier prompt's ids are sealed: without them nothing can be written out
            tokens = self._whole(tenant, current["prefix"])["tokens"]
            if not isinstance(tokens["completion_token_ids"], list):
                return form
            pieces += [current["append"], tokens["completion_token_ids"]]
            current = known.get(current["prefix"], tokens["prompt_token_ids"])
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
        chosen = "" if kinds is None else "AND kind IN :kinds"
        values = {} if kinds is None else {"kinds": kinds}
        where = f"position>:position AND agent=:agent AND record!='trajectory' {chosen}"
        statement = f"SELECT committed, position, body FROM records WHERE {where} ORDER BY position LIMIT :limit"  # noqa: S608
        rows = self._rows(
            tenant,
            statement,
            position=position,
            agent=agent,
            limit=limit,
            **values,
        )
        return [(row[0], tenant, row[1], unpack(row[2])) for row in rows]

    def _part(self, tenant: str, digest: str) -> bytes | None:
        row = self._row(tenant, "SELECT data, packed, apart FROM parts WHERE digest=:digest", digest=digest)
        if row is None:
            return None
        data, packed, apart = row
        if apart is not None:
            return self._blobs.get(tenant, digest)
        return unpack_content(data) if packed else bytes(data)

    def snapshot(self, tenant: str) -> AbstractContextManager[None]:
        """Whatever is read of the tenant in here is as of one moment."""
        return self._connection.snapshot(tenant)

    def _row(self, tenant: str, statement: str, **values: Any) -> Row | None:
        rows = self._rows(tenant, statement, **values)
        return rows[0] if rows else None

    def _rows(self, tenant: str, statement: str, **values: Any) -> list[Row]:
        return self._connection.query(tenant, statement, **values)


def _without(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in message.items() if k != key}
