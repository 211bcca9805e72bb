"""Each process that writes under a directory has spools and a journal of its own there: a numbered slot and its lock.

The lock goes with the process, so what a killed one left in its slot can be taken over: by whoever takes the
slot next, or by a process that runs on and looks for such slots.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import zlib
from itertools import count
from pathlib import Path

import msgspec

from services.proxy.engines.base import require_tenant
from services.proxy.journal import Journal, journals
from services.proxy.journal_reading import heads
from services.proxy.spool import Job, Spool

_log = logging.getLogger(__name__)

_LOOK_S = 0.02


class Slot:
    """One process's spools, by tenant, and its journal."""

    def __init__(self, folder: Path, handle: int, max_bytes: int) -> None:
        self.folder = folder
        self._handle = handle
        self._max_bytes = max_bytes
        self._spools: dict[str, Spool] = {}
        self.left = journals(folder)
        """Journals that its last holder left."""
        self.journal = Journal(folder)
        for path in sorted(path for path in folder.iterdir() if path.is_dir()):
            try:
                self.spool(require_tenant(path.name))
            except ValueError as error:  # somebody's copy, say
                _log.warning("%s is left alone: %s", path, error)

    def spool(self, tenant: str) -> Spool:
        """A tenant's spool; made when there is none. Raises `OSError`."""
        spool = self._spools.get(tenant)
        if spool is None:
            spool = self._spools[tenant] = Spool(self.folder / tenant, self._max_bytes)
        return spool

    def waiting(self) -> dict[str, Spool]:
        """The spools that hold something."""
        return {tenant: spool for tenant, spool in self._spools.items() if not spool.empty}

    def take_in(self, path: Path) -> None:
        """Take over the file that Evoplane 0.1.0 spooled to, for all tenants. Raises `OSError`."""
        if not path.exists():
            return
        with path.open("rb") as lines:
            for line in lines:
                if line[:8] == b"%08x" % zlib.crc32(line[9:-1]):
                    job = msgspec.json.decode(line[9:-1], type=Job)
                    self.spool(job.tenant).append([job])
        path.unlink()

    @property
    def size(self) -> int:
        return sum(spool.size for spool in self._spools.values())

    def close(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self.journal.close()
        os.close(self._handle)


class Slots:
    """The slots under one directory."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def take(self) -> Slot:
        """The first slot that nobody holds, with what its last holder left. Raises `OSError`."""
        self._root.mkdir(parents=True, exist_ok=True)
        for number in count():
            slot = self._lock(self._root / str(number))
            if slot is not None:
                return slot
        raise AssertionError("count() ends never")

    def abandoned(self) -> list[Slot]:
        """Slots that nobody holds and that hold something; they are the caller's now, to drain and to close."""
        found: list[Slot] = []
        for folder in sorted(path for path in self._root.iterdir() if path.is_dir()):
            slot = self._lock(folder) if any(folder.glob("*/[0-9]*.jsonl")) or journals(folder) else None
            if slot is not None and (slot.waiting() or slot.left):
                found.append(slot)
            elif slot is not None:
                slot.close()
        return found

    def put_aside(self) -> set[Path]:
        """Files that are kept for a person to look at."""
        return {*self._root.glob("*/*/rejected.jsonl"), *self._root.glob("*/damaged-journal-*")}

    def journaled_elsewhere(self, tenant: str, own: Slot, patience_s: float) -> bool:
        """Do other slots' journals hold entries of a tenant's that are there now, and still are after this long?"""
        until = time.monotonic() + patience_s
        seen = self._journaled(tenant, own)
        while seen and time.monotonic() < until:
            time.sleep(_LOOK_S)
            seen &= self._journaled(tenant, own)
        return bool(seen)

    def _journaled(self, tenant: str, own: Slot) -> set[tuple[Path, int]]:
        found: set[tuple[Path, int]] = set()
        for path in (path for folder in self._root.iterdir() if folder != own.folder for path in journals(folder)):
            with contextlib.suppress(FileNotFoundError):
                found |= {(path, head.number) for head in heads(path.read_bytes()) if head.tenant == tenant}
        return found

    def _lock(self, folder: Path) -> Slot | None:
        folder.mkdir(exist_ok=True)
        # the file stays for ever: were it removed, two processes could each hold a lock called the same
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return Slot(folder, handle, self._max_bytes)
