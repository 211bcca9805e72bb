"""Jobs that are on the disk before they have their places in the log: encrypted, in a file of the slot's own.

A caller who waits alone is told after one write and one sync; redacting, placing and SQL come behind that. What lies
here is as it was captured, so it is encrypted under a key of this journal's own that the tenant's key wraps, and it is
overwritten as soon as its tenant's log is on the disk too. A crash leaves entries behind; the next start places them,
which is idempotent by id.

An entry is a header, the tenant's id, the wrapped key, then AES-256-GCM over the job and the policy it was sent under;
the file is allocated beforehand, for a sync that has to note a file's new length takes longer.
"""

from __future__ import annotations

import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag

from atdp.randomness import random_bytes
from evoplane.files import sync_folder
from registry.keyring import KEY_BYTES, KeyringError, TenantKeys, decrypt, encrypt
from registry.tenant_policy import TenantPolicy
from services.proxy import faults

_log = logging.getLogger(__name__)

MAX_ENTRY_BYTES = 64 * 1024
"""What is larger takes longer to write than to place."""
_FILE_BYTES = 512 * 1024
"""So much is repeated after a crash at most, and overwritten with zeros at once when it is full."""
_SECTOR = 512
"""A disk writes so much or nothing of it."""
_AGAIN_S = 5.0
"""A file that could not be made is tried again after so long."""

_AROUND_BYTES = 4096
"""More than what is around a job, a policy included, unless that is long: then it does not fit, either."""

_MAGIC = b"EPJ1"
_HEADER = struct.Struct("<4sQHHII")
"""Magic, the entry's number, lengths of tenant and wrapped key, version of the tenant's key, length of the rest."""
_CHECK = struct.Struct("<I")
"""CRC-32 of all that is before the ciphertext."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A job, as it travels to the process that writes, and what it is to be stored under."""

    job: bytes
    policy: TenantPolicy


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Journal:
    """The file that one process writes; made when it is first needed. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._path: Path
        self._used = 0
        self._number = 0
        self._keys: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        """By tenant and version of its key: the key of what is in the file now, and that key wrapped."""
        self._next_try = 0.0

    @property
    def empty(self) -> bool:
        return self._used == 0

    @property
    def full(self) -> bool:
        """Should it be cleared before it takes more?"""
        return self._used + MAX_ENTRY_BYTES + _AROUND_BYTES > _FILE_BYTES

    def takes(self, size: int) -> bool:
        """May a job of so many bytes be appended now?"""
        return size <= MAX_ENTRY_BYTES and not self.full and time.monotonic() >= self._next_try

    def append(self, keys: TenantKeys, entry: Entry) -> None:
        """Have it on the disk. Raises `OSError`, and then it may be there or not."""
        file = self._opened()
        data = self._sealed(keys, entry)
        if self._used + len(data) > _FILE_BYTES:
            raise OSError(f"an entry of {len(data)} bytes does not fit into {self._path}")
        half = len(data) // 2
        faults.reach("before_journal_write")
        os.pwrite(file, data[:half], self._used)
        faults.reach("in_journal_write")
        os.pwrite(file, data[half:], self._used + half)
        os.fdatasync(file)
        faults.reach("after_journal_sync")
        self._used += len(data)

    def clear(self) -> None:
        """Everything in it is in the logs, on the disk: make it unreadable. Raises `OSError`."""
        if self._file is None or self._used == 0:
            return
        faults.reach("before_journal_clear")
        os.pwrite(self._file, bytes(self._used), 0)
        os.fdatasync(self._file)
        faults.reach("after_journal_clear")
        self._used = 0
        self._keys.clear()

    def close(self) -> None:
        """Raises `OSError`. A journal that holds something stays, for whoever takes the slot next."""
        if self._file is None:
            return
        os.close(self._file)
        self._file = None
        if self.empty:
            self._path.unlink(missing_ok=True)

    def _opened(self) -> int:
        if self._file is None:
            self._next_try = time.monotonic() + _AGAIN_S
            taken = [_number_of(path) for path in journals(self._folder)]
            path = self._folder / f"journal-{max(taken, default=0) + 1}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # written, not only allocated: a block's first use is noted by the file system, too
                if os.pwrite(file, bytes(_FILE_BYTES), 0) < _FILE_BYTES:
                    raise OSError(f"{path} could not be allocated")
                os.fsync(file)
                sync_folder(self._folder)
            except BaseException:
                os.close(file)
                path.unlink(missing_ok=True)
                raise
            self._file, self._path, self._used, self._next_try = file, path, 0, 0.0
        return self._file

    def _sealed(self, keys: TenantKeys, entry: Entry) -> bytes:
        version = keys.current
        key, wrapped = self._keys.get((keys.tenant, version)) or self._new_key(keys)
        plain = _encoder.encode(entry)
        self._number += 1
        tenant = keys.tenant.encode()
        size = len(plain) + _SEALING_BYTES
        head = _HEADER.pack(_MAGIC, self._number, len(tenant), len(wrapped), version, size) + tenant + wrapped
        return head + _CHECK.pack(zlib.crc32(head)) + encrypt(key, plain, head)

    def _new_key(self, keys: TenantKeys) -> tuple[bytes, bytes]:
        key = random_bytes(KEY_BYTES)
        version, wrapped = keys.wrap(_PURPOSE, key)
        made = self._keys[keys.tenant, version] = key, wrapped
        return made


_PURPOSE = "journal"
"""What a journal's key is wrapped for: no trajectory is called so."""
_SEALING_BYTES = 12 + 16
"""Nonce and tag."""


def journals(folder: Path) -> list[Path]:
    """The journals in a slot, the oldest first."""
    return sorted((path for path in folder.glob("journal-*") if path.name[8:].isdigit()), key=_number_of)


def put_aside(path: Path) -> None:
    """Keep a journal that could not be read to its end, for a person to look at; it is not read again."""
    path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Everything in it is in the logs, on the disk."""
    path.unlink()
    sync_folder(path.parent)


class Reading:
    """What a process that is gone left in a journal."""

    def __init__(self, path: Path, keys_of: Callable[[str], TenantKeys]) -> None:
        """`keys_of` gives a tenant's keys and raises `KeyError` for one that has none."""
        self._data = path.read_bytes()
        self._path = path
        self._keys_of = keys_of
        self.damaged = False
        """Is there something that should be readable, and is not? Known at the end."""
        self.locked = False
        """Is there something whose key is not there, now? Known at the end."""

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        """Tenants and their entries, in the order in which these were written.

        The last one may have been cut short: nobody was told that it is safe.
        """
        at, last = 0, 0
        while (found := self._next(at, last)) is not None:
            start, number, end = found
            self.damaged = self.damaged or start != at
            entry = self._entry(start, end)
            if entry is not None:
                yield entry
            elif not self.locked and (self._next(end, number) is not None or not self._cut_short(start, end)):
                self.damaged = True
            at, last = end, number
        self.damaged = self.damaged or any(self._data[at:])

    def _next(self, at: int, last: int) -> tuple[int, int, int] | None:
        """Where the next entry begins whose head is whole, its number, and where it ends."""
        while (at := self._data.find(_MAGIC, at)) >= 0:
            head = _head_at(self._data, at)
            if head is not None and head[0] > last:
                return at, head[0], head[1]
            at += 1
        return None

    def _cut_short(self, start: int, end: int) -> bool:
        """Is a sector missing? Nothing but zeros was there before, and none of what is written is all zeros."""
        ends = [*range(start - start % _SECTOR + _SECTOR, end, _SECTOR), end]
        return any(not any(self._data[a:b]) for a, b in zip([start, *ends], ends, strict=False))

    def _entry(self, start: int, end: int) -> tuple[str, Entry] | None:
        _, _, for_tenant, _, version, size = _HEADER.unpack_from(self._data, start)
        head = self._data[start : end - size - _CHECK.size]
        tenant = head[_HEADER.size : _HEADER.size + for_tenant].decode()
        try:
            key = self._keys_of(tenant).unwrap(_PURPOSE, version, head[_HEADER.size + for_tenant :])
        except (KeyError, KeyringError):
            _log.error("an entry of %s can't be read without the key of %s", self._path, tenant)
            self.locked = True
            return None
        try:
            return tenant, _decoder.decode(decrypt(key, self._data[end - size : end], head))
        except (InvalidTag, msgspec.MsgspecError) as error:
            _log.error("an entry of %s can't be read: %s", self._path, type(error).__name__)
            return None


def _head_at(data: bytes, at: int) -> tuple[int, int] | None:
    """The number of an entry that begins there and where it ends; None when there is none."""
    if at + _HEADER.size > len(data):
        return None
    _, number, for_tenant, for_key, _, size = _HEADER.unpack_from(data, at)
    check = at + _HEADER.size + for_tenant + for_key
    end = check + _CHECK.size + size
    if end > len(data) or _CHECK.unpack_from(data, check)[0] != zlib.crc32(data[at:check]):
        return None
    return number, end


def _number_of(path: Path) -> int:
    return int(path.name[8:])
