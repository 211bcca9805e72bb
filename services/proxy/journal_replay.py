"""Placing what processes that are gone left in their journals: each entry under the policy it was sent under.

An entry over which a process may have died is tried again by the next ones, and not for ever: a file beside the journal
says which one is being placed, and how often that was begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from evoplane.files import sync_folder, write_durably
from services.proxy import faults
from services.proxy.drafts import StoreDraft, StoreUnavailable
from services.proxy.engines.base import StorageFailed
from services.proxy.governor import Governor
from services.proxy.journal import Entry, overwrite
from services.proxy.journal_reading import Head, Reading
from services.proxy.spool import Job
from services.proxy.tenant_writer import TenantWriter
from services.proxy.writer_frames import part_of, parts_of

_log = logging.getLogger(__name__)

_TRIES = 3
"""Processes that may die over an entry before it is put aside."""


class NotNow(Exception):
    """Something can't be placed now: the journal stays where it is."""


class Replay:
    """One journal. For one thread."""

    def __init__(self, path: Path, governor: Governor, writer_of: Callable[[str], TenantWriter]) -> None:
        self._path = path
        self._governor = governor
        self._writer_of = writer_of
        self._governors: dict[tuple[str, bytes], Governor] = {}
        """One for all entries of a tenant under one policy: what is recognised in one of them is hidden in the next."""
        self._mark = path.with_name(f"{path.name}.tries")
        self._touched: dict[str, TenantWriter] = {}
        self._later: dict[str, str] = {}
        """Tenants of whose entries something can't be placed now, and why."""
        self._tries = self._begun_before()
        """How often entries were begun to be placed and neither were nor were given up, by number."""

    def run(self) -> None:
        """Place all of it, and remove it.

        Raises `NotNow` and `OSError`: what could not be placed now stays, to be tried again, and nothing else.
        """
        data = self._path.read_bytes()
        reading = Reading(data, self._governor.keys_of)
        placed: list[Head] = []
        aside: list[tuple[int, int]] = []
        try:
            for head, entry in reading:
                if head.tenant in self._later:
                    continue  # what follows goes on from it
                match self._place(head, entry):
                    case True:
                        placed.append(head)
                    case False:
                        aside.append((head.start, head.end))
            self._sync()
        except BaseException:
            self._note()  # nobody died over what was begun
            raise
        if self._later or reading.locked:
            self._note()
            overwrite(self._path, [(head.start, head.end) for head in placed if head.tenant not in self._later])
            raise NotNow("; ".join(self._later.values()) or "a tenant's key is missing")
        if lost := sorted(aside + reading.damaged):
            self._put_aside(b"".join(data[start:end] for start, end in lost))
        self._mark.unlink(missing_ok=True)
        self._path.unlink()
        sync_folder(self._path.parent)

    def _place(self, head: Head, entry: Entry) -> bool | None:
        """Have it in the log, or in the spool, or put aside redacted. False when it can't be, None when not now."""
        tries = self._tries.get(head.number, 0)
        if tries >= _TRIES:
            _log.error("%d processes died over an entry of %s, which is put aside", tries, head.tenant)
            return False
        self._tries[head.number] = tries + 1
        self._note()
        try:
            job = Job(head.tenant, self._protected(head.tenant, entry))
            writer = self._touched[head.tenant] = self._writer_of(head.tenant)
            result = writer.write_again(job)
        except (StorageFailed, OSError) as error:
            result = StoreUnavailable(str(error))
        except Exception:  # what is wrong with one must neither keep the others nor the process that starts
            _log.exception("an entry of %s in %s can't be placed and is put aside", head.tenant, self._path)
            return False
        finally:  # nobody died
            del self._tries[head.number]
        faults.reach("in_journal_replay")
        if isinstance(result, StoreUnavailable):
            self._later[head.tenant] = str(result)
            return None
        return True

    def _sync(self) -> None:
        """What went into a log is on the disk; what went into a spool is already."""
        for tenant, writer in self._touched.items():
            if writer.unsynced and not writer.sync():
                self._later[tenant] = writer.failure

    def _protected(self, tenant: str, entry: Entry) -> list[StoreDraft]:
        first, rest = (part_of(part).drafts if part else [] for part in parts_of(entry.job))
        of = tenant, msgspec.msgpack.encode(entry.policy)
        governor = self._governors.get(of) or self._governors.setdefault(of, self._governor.under(tenant, entry.policy))
        return governor.protect(tenant, [*first, *rest])

    def _begun_before(self) -> dict[int, int]:
        try:
            return msgspec.json.decode(self._mark.read_bytes(), type=dict[int, int])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _note(self) -> None:
        write_durably(self._mark, msgspec.json.encode(self._tries))

    def _put_aside(self, data: bytes) -> None:
        """Keep what could not be read or placed, encrypted as it is, for a person to look at."""
        aside = self._path.with_name(f"damaged-{self._path.name}-{time.time_ns()}")
        write_durably(aside, data)
        _log.error("the journal %s is damaged: what could be read is placed, the rest is in %s", self._path, aside)
