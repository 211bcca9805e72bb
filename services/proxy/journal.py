"""Jobs that are on the disk before they have their places in the log: encrypted, in a file of the slot's own.

A caller who waits alone is told after one write and one sync; redacting, placing and SQL come behind that. What lies
here is as it was captured, so it is encrypted under a key of this file's own that the tenant's key wraps, and it is
overwritten as soon as its tenant's log is on the disk too. A crash leaves entries behind; the next start places them
(`journal_replay`), which is idempotent by id.

An entry is a header, the tenant's id, the wrapped key, then AES-256-GCM over the job and the policy it was sent under.
The file is allocated beforehand: a sync that has to note a file's new length takes longer.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from atdp.randomness import random_bytes
from evoplane.files import sync_folder
from registry.keyring import KEY_BYTES, TenantKeys, encrypt
from registry.tenant_policy import TenantPolicy
from services.proxy import faults

MAX_ENTRY_BYTES = 64 * 1024
"""What is larger takes longer to write than to place."""
_AROUND_BYTES = 4096
"""More than what is around a job, a policy included, unless that is long: then it does not fit, either."""
_FILE_BYTES = 512 * 1024
"""So much is repeated after a crash at most, and overwritten at once when it is full."""
_OLD_S = 1.0
"""What was captured lies there no longer than this while the log takes it."""
_AGAIN_S = 5.0
"""A file that could not be made is tried again after so long."""

MAGIC = b"EPJ1"
HEADER = struct.Struct("<4sQHHII")
"""Magic, the entry's number, lengths of tenant and wrapped key, version of the tenant's key, length of the rest."""
CHECK = struct.Struct("<I")
"""CRC-32 of all that is before the ciphertext."""
PURPOSE = "journal"
"""What a journal's key is wrapped for: no trajectory is called so."""
_SEALING_BYTES = 12 + 16
"""Nonce and tag."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A job, as it travels to the process that writes, and what it is to be stored under."""

    job: bytes
    policy: TenantPolicy


class _Place(NamedTuple):
    """Where an entry is."""

    start: int
    size: int
    tenant: str


_encoder = msgspec.msgpack.Encoder()


class Journal:
    """The file that one process writes; made when it is first needed. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._path: Path
        self._used = 0
        self._number = 0
        self._entries: list[_Place] = []
        self._since = 0.0
        """When the oldest of them was written (`time.monotonic`), or the file was last cleared."""
        self._keys: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        """By tenant and version of its key: the key of what is in the file now, and that key wrapped."""
        self._next_try = 0.0

    @property
    def tenants(self) -> set[str]:
        """Whose jobs are in it."""
        return {entry.tenant for entry in self._entries}

    @property
    def full(self) -> bool:
        """Should it be cleared before it takes more?"""
        return self._used + MAX_ENTRY_BYTES + _AROUND_BYTES > _FILE_BYTES

    @property
    def old(self) -> bool:
        """Has something been there for longer than it should?"""
        return bool(self._entries) and time.monotonic() - self._since > _OLD_S

    def takes(self, size: int) -> bool:
        """May a job of so many bytes be appended now?"""
        return size <= MAX_ENTRY_BYTES and not self.full and time.monotonic() >= self._next_try

    def append(self, keys: TenantKeys, entry: Entry) -> None:
        """Have it on the disk. Raises `OSError`, and then it may be there or not."""
        file = self._opened()
        data = self._sealed(keys, entry)
        if self._used + len(data) > _FILE_BYTES:
            raise OSError(f"an entry of {len(data)} bytes does not fit into {self._path}")
        faults.reach("before_journal_write")
        half = len(data) // 2
        _write_at(file, data[:half], self._used)
        faults.reach("in_journal_write")
        _write_at(file, data[half:], self._used + half)
        os.fdatasync(file)
        faults.reach("after_journal_sync")
        if not self._entries:
            self._since = time.monotonic()
        self._entries.append(_Place(self._used, len(data), keys.tenant))
        self._used += len(data)

    def clear(self, keep: Collection[str] = ()) -> None:
        """What is not of these tenants is in the logs, on the disk: make it unreadable. Raises `OSError`."""
        gone = [entry for entry in self._entries if entry.tenant not in keep]
        if not gone or self._file is None:
            return
        self._since = time.monotonic()
        faults.reach("before_journal_clear")
        for start, end in _joined(gone):
            _write_at(self._file, bytes(end - start), start)
        os.fdatasync(self._file)
        faults.reach("after_journal_clear")
        self._entries = [entry for entry in self._entries if entry.tenant in keep]
        self._keys = {of: key for of, key in self._keys.items() if of[0] in keep}
        self._used = self._entries[-1].start + self._entries[-1].size if self._entries else 0

    def close(self) -> None:
        """A journal that holds something stays, for whoever takes the slot next."""
        if self._file is None:
            return
        os.close(self._file)
        self._file = None
        if not self._entries:
            self._path.unlink(missing_ok=True)

    def _opened(self) -> int:
        if self._file is not None and not self._in_place(self._file):
            # nobody would ever read what is written there
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._next_try = time.monotonic() + _AGAIN_S
            self._file = self._made()
            self._used, self._entries, self._next_try = 0, [], 0.0
            self._keys.clear()
        return self._file

    def _in_place(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(file))

    def _made(self) -> int:
        self._path = self._folder / f"journal-{max(map(_number_of, journals(self._folder)), default=0) + 1}"
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # written, not only allocated: a block's first use is noted by the file system, too
            _write_at(file, bytes(_FILE_BYTES), 0)
            os.fsync(file)
            sync_folder(self._folder)
        except BaseException:
            os.close(file)
            self._path.unlink(missing_ok=True)
            raise
        return file

    def _sealed(self, keys: TenantKeys, entry: Entry) -> bytes:
        version = keys.current
        key, wrapped = self._keys.get((keys.tenant, version)) or self._new_key(keys)
        plain = _encoder.encode(entry)
        self._number += 1
        tenant = keys.tenant.encode()
        size = len(plain) + _SEALING_BYTES
        head = HEADER.pack(MAGIC, self._number, len(tenant), len(wrapped), version, size) + tenant + wrapped
        return head + CHECK.pack(zlib.crc32(head)) + encrypt(key, plain, head)

    def _new_key(self, keys: TenantKeys) -> tuple[bytes, bytes]:
        key = random_bytes(KEY_BYTES)
        version, wrapped = keys.wrap(PURPOSE, key)
        made = self._keys[keys.tenant, version] = key, wrapped
        return made


def journals(folder: Path) -> list[Path]:
    """The journals in a slot, the oldest first."""
    return sorted((path for path in folder.glob("journal-*") if path.name[8:].isdigit()), key=_number_of)


def overwrite(path: Path, spans: Iterable[tuple[int, int]]) -> None:
    """Have zeros there, on the disk. Raises `OSError`."""
    file = os.open(path, os.O_WRONLY)
    try:
        for start, end in spans:
            _write_at(file, bytes(end - start), start)
        os.fdatasync(file)
    finally:
        os.close(file)


def _number_of(path: Path) -> int:
    return int(path.name[8:])


def _joined(entries: Iterable[_Place]) -> list[tuple[int, int]]:
    """From where to where they reach, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for entry in entries:
        if joined and joined[-1][1] == entry.start:
            joined[-1] = (joined[-1][0], entry.start + entry.size)
        else:
            joined.append((entry.start, entry.start + entry.size))
    return joined


def _write_at(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
