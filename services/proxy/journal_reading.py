"""What is in a journal's file: its entries, and whether something is damaged.

Nothing but zeros is where no entry is. A disk writes whole sectors: what was being written, or overwritten, when a
machine died may lack some, and nobody waits for it. Whatever else can't be read is damage.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag

from registry.keyring import KeyringError, TenantKeys, decrypt
from services.proxy.journal import CHECK, HEADER, MAGIC, PURPOSE, Entry

_log = logging.getLogger(__name__)

_SECTOR = 512
_ZEROS = 8
"""So many are in a row of a ciphertext never."""

_decoder = msgspec.msgpack.Decoder(Entry)


class Head(NamedTuple):
    """An entry whose header is whole."""

    start: int
    end: int
    number: int
    tenant: str
    version: int
    wrapped: bytes
    authenticated: bytes
    """All that is before the check: the ciphertext is nobody else's."""


class Reading:
    """What a process that is gone left in a journal."""

    def __init__(self, data: bytes, keys_of: Callable[[str], TenantKeys]) -> None:
        """`keys_of` gives a tenant's keys and raises `KeyError` for one that has none."""
        self._data = data
        self._keys_of = keys_of
        self.damaged: list[tuple[int, int]] = []
        """From where to where something can't be read that should be. Known at the end."""
        self.locked = False
        """Is there something whose key is not there now? Known at the end."""

    def __iter__(self) -> Iterator[tuple[Head, Entry]]:
        """The entries, in the order in which they were written."""
        at = 0
        for head in heads(self._data):
            self._between(at, head.start)
            entry = self._entry(head)
            if entry is not None:
                yield head, entry
            at = head.end
        self._between(at, len(self._data))

    def _entry(self, head: Head) -> Entry | None:
        try:
            key = self._keys_of(head.tenant).unwrap(PURPOSE, head.version, head.wrapped)
        except (KeyError, KeyringError):
            _log.warning("an entry of a journal can't be read without the key of %s", head.tenant)
            self.locked = True
            return None
        start = head.start + len(head.authenticated) + CHECK.size
        try:
            return _decoder.decode(decrypt(key, self._data[start : head.end], head.authenticated))
        except (InvalidTag, msgspec.MsgspecError):
            last = not any(self._data[head.end :])
            if not (last and self._is_cut_short(head.start, head.end)):
                self.damaged.append((head.start, head.end))
            return None

    def _between(self, start: int, end: int) -> None:
        """Where there is no entry."""
        space = self._data[start:end]
        used = space.rstrip(b"\0")
        first = start + len(used) - len(used.lstrip(b"\0"))
        sector = first - first % _SECTOR
        if used and not (sector > start and first - sector < _ZEROS):  # else the sectors before it are missing
            self.damaged.append((first, start + len(used)))

    def _is_cut_short(self, start: int, end: int) -> bool:
        """Is a sector missing, or the end? None of what is written is all zeros."""
        ends = [*range(start - start % _SECTOR + _SECTOR, end, _SECTOR), end - _ZEROS, end]
        return any(not any(self._data[a:b]) for a, b in zip([start, *ends], ends, strict=False))


def heads(data: bytes) -> Iterator[Head]:
    """The entries whose headers are whole, each one newer than the one before it."""
    at, last = 0, 0
    while (at := data.find(MAGIC, at)) >= 0:
        head = _head_at(data, at)
        if head is None or head.number <= last:
            at += 1
            continue
        yield head
        at, last = head.end, head.number


def _head_at(data: bytes, at: int) -> Head | None:
    if at + HEADER.size > len(data):
        return None
    _, number, for_tenant, for_key, version, size = HEADER.unpack_from(data, at)
    check = at + HEADER.size + for_tenant + for_key
    end = check + CHECK.size + size
    if end > len(data) or CHECK.unpack_from(data, check)[0] != zlib.crc32(data[at:check]):
        return None
    named = at + HEADER.size + for_tenant
    tenant = data[at + HEADER.size : named].decode()
    return Head(at, end, number, tenant, version, data[named:check], data[at:check])
