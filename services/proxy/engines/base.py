"""What the event log asks of a database. Statements are written once, for both; only this differs.

A statement names its values `:so`, and a list of values `IN :so`. It never names a tenant: a connection
reads and writes the log of the tenant it was opened for, and the engine sees to that (SQLite by a file
a tenant, PostgreSQL by row-level security).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class StorageFailed(Exception):
    """The database did not do it: it is away, locked, full or damaged. It may work later."""


class StorageRefused(Exception):
    """The database can't take one of the values, now or ever."""


class Misconfigured(StorageFailed):
    """The database must not be used like this; says what to change."""


Row = tuple[Any, ...]


def require_tenant(tenant: str) -> str:
    """The tenant's id, which is a file's name too; raises `ValueError` for what can't be one."""
    if not _TENANT.fullmatch(tenant):
        raise ValueError(f"{tenant!r} is no tenant id")
    return tenant


class WriteConnection(Protocol):
    """One tenant's log, open for writing, for one thread. Everything raises `StorageFailed` or `StorageRefused`."""

    def in_place(self) -> bool:
        """Is this what whoever opens the log now would find? Somebody may have taken it away or put another there."""

    def transaction(self, sync: bool = True) -> AbstractContextManager[bool]:
        """All or nothing, on the disk when it ends, and no other writer of this tenant meanwhile.

        Without `sync` it may be on the disk only after `sync`, or with the next transaction that is.
        Gives whether nobody else has written since this connection's last transaction: if so, what was read
        then still holds.
        """

    def sync(self) -> None:
        """Have on the disk what was committed."""

    def query(self, statement: str, **values: Any) -> list[Row]:
        """Run one statement; gives the rows it returns."""

    def insert(self, table: str, columns: str, rows: Iterable[Row], ignore: bool = False) -> None:
        """Insert rows; with `ignore`, those whose key is taken stay as they are."""

    def update(self, table: str, columns: str, key: str, rows: Iterable[Row]) -> None:
        """Set columns of the row whose `key` is each row's last value."""

    def next_position(self) -> int:
        """The position after the last record's. Positions grow in the order of commits."""

    def used_position(self, position: int) -> None:
        """This transaction's last record has this position."""

    def scrub(self) -> None:
        """Make what was deleted unreadable in the files, as far as the engine can."""

    def close(self) -> None: ...


class ReadConnection(Protocol):
    """Every tenant's log, for reading, from any thread. Everything raises `StorageFailed`."""

    def tenants(self) -> list[str]:
        """Tenants that have a log."""

    def query(self, tenant: str, statement: str, **values: Any) -> list[Row]:
        """The rows of one statement; none when the tenant has no log."""

    def snapshot(self, tenant: str) -> AbstractContextManager[None]:
        """What is read in here is as of one moment."""

    def close(self) -> None: ...


class Engine(Protocol):
    name: str

    def prepare(self) -> None:
        """Make sure that the tables are there.

        Raises `StorageFailed` when the database is away and `Misconfigured` when it must not be used as it is.
        """

    def writing(self, tenant: str) -> WriteConnection:
        """Open a tenant's log for writing; makes it if there is none. Raises `StorageFailed`."""

    def reading(self) -> ReadConnection:
        """Open the logs for reading."""

    def close(self) -> None: ...
