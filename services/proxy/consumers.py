"""Named consumers of the event log: each gets every record once it is committed, from where it acknowledged last.

At least once: what was fetched and not acknowledged comes again. Records are idempotent by id
(`id`, or `trajectory_id` of a header). A position is passed only when everything before it is committed, on
PostgreSQL too, so nothing is skipped.
"""

from __future__ import annotations

import heapq
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from evoplane.settings import Settings
from services.proxy.engines.base import Engine
from services.proxy.engines.opening import open_engine
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.packing import unpack
from services.proxy.reader import Cursor


def open_consumers(settings: Settings) -> Consumers:
    """The deployment's consumers; close after use. Everything raises `StorageFailed`."""
    return Consumers(settings.store_dir, engine=open_engine(settings))


class Consumers:
    """Where each consumer is in each tenant's log; that is kept in the log itself."""

    def __init__(self, root: Path, *, engine: Engine | None = None) -> None:
        self._engine = engine or SqliteEngine(root)
        self._connection = self._engine.reading()

    def close(self) -> None:
        self._connection.close()
        self._engine.close()

    def fetch(
        self, consumer: str, limit: int = 1000, tenant: str | None = None
    ) -> tuple[list[tuple[str, dict[str, Any]]], Cursor]:
        """The next records, headers included, as (tenant, record) in the order of their commits a tenant.

        The cursor is what to acknowledge once they are dealt with.
        """
        tenants = [tenant] if tenant is not None else self._connection.tenants()
        sources = [self._after(name, self._position(name, consumer), limit) for name in tenants]
        found: list[tuple[str, dict[str, Any]]] = []
        cursor: Cursor = {}
        for _, name, position, body in islice(heapq.merge(*sources), limit):
            found.append((name, orjson.loads(body)))
            cursor[name] = position
        return found, cursor

    def ack(self, consumer: str, cursor: Cursor) -> None:
        """Never give the records up to the cursor again. An older cursor than the last changes nothing."""
        for tenant, position in cursor.items():
            writer = self._engine.writing(tenant)
            try:
                with writer.transaction():
                    known = writer.query("SELECT position FROM consumers WHERE name=:name", name=consumer)
                    if not known:
                        writer.insert("consumers", "name,position", [(consumer, position)])
                    elif known[0][0] < position:
                        writer.update("consumers", "position", "name", [(position, consumer)])
            finally:
                writer.close()

    def acknowledged(self, consumer: str) -> Cursor:
        """Up to where it has acknowledged."""
        positions = {tenant: self._position(tenant, consumer) for tenant in self._connection.tenants()}
        return {tenant: position for tenant, position in positions.items() if position}

    def _position(self, tenant: str, consumer: str) -> int:
        rows = self._connection.query(tenant, "SELECT position FROM consumers WHERE name=:name", name=consumer)
        return int(rows[0][0]) if rows else 0

    def _after(self, tenant: str, position: int, limit: int) -> list[tuple[float, str, int, bytes]]:
        rows = self._connection.query(
            tenant,
            "SELECT committed, position, body FROM records WHERE position>:position ORDER BY position LIMIT :limit",
            position=position,
            limit=limit,
        )
        return [(row[0], tenant, row[1], unpack(row[2])) for row in rows]
