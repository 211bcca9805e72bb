"""Where drafts wait while the store can't commit: an append-only file, forced to the disk.

One line a job: 8 hex digits of CRC-32, a space, JSON. A line that a crash cut short fails its
checksum and ends the file; it was never acknowledged. The file is emptied only after everything
in it was committed, so a crash while draining repeats work and loses none. What can't be read or
placed goes to `spool.rejected.jsonl` beside it, in the same form, for a person to look at.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from services.proxy.drafts import InvalidDraft, StoreDraft

_log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
"""Enough for an hour of a busy gateway; beyond it the gateway refuses rather than fill the disk."""

_PROBE = b"00000000 probe\n"


class Job(msgspec.Struct, frozen=True):
    """Drafts of one tenant that are stored together or not at all."""

    tenant: str
    drafts: list[StoreDraft]


class SpoolFull(OSError):
    """The spool holds as much as it may."""


class Spool:
    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._rejected = path.with_name(f"{path.stem}.rejected.jsonl")
        self._max_bytes = max_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        _sync_directory(path.parent)
        self._size = self._end_of_whole_lines()
        os.ftruncate(self._file, self._size)

    @property
    def empty(self) -> bool:
        return self._size == 0

    @property
    def size(self) -> int:
        """Bytes waiting."""
        return self._size

    def append(self, jobs: Iterable[Job]) -> list[InvalidDraft | None]:
        """Make the jobs durable, all or none; raises `OSError` when that is impossible.

        A job that could not be read back is left out and named in the answer, which has one item a job:
        it must not be acknowledged.
        """
        lines: list[bytes] = []
        refused: list[InvalidDraft | None] = []
        for job in jobs:
            try:
                lines.append(_readable(job))
                refused.append(None)
            except InvalidDraft as error:
                refused.append(error)
        data = b"".join(lines)
        if self._size + len(data) > self._max_bytes:
            raise SpoolFull(f"the spool {self._path} holds {self._size} bytes and may hold {self._max_bytes}")
        try:
            self._write(data)
        except OSError:
            self._cut(self._size)
            raise
        self._size += len(data)
        return refused

    def jobs(self) -> Iterator[Job]:
        """What waits, oldest first. A line that is whole but can't be read is put aside."""
        with self._path.open("rb") as lines:
            for line in lines:
                try:
                    yield msgspec.json.decode(line[9:], type=Job)
                except msgspec.DecodeError:
                    _log.exception("spool line can't be decoded and is put aside: %r", line[:200])
                    self._put_aside(line)

    def reject(self, job: Job) -> None:
        """Put a job aside that the store won't take; durable when this returns, raises `OSError` when it can't be."""
        self._put_aside(_line(msgspec.json.encode(job)))

    def clear(self) -> None:
        """Forget everything: it is in the store now."""
        self._cut(0)
        self._size = 0

    def probe(self) -> None:
        """Raises `OSError` when the spool could not take a job now."""
        if self._size >= self._max_bytes:
            raise SpoolFull(f"the spool {self._path} is full")
        try:
            self._write(_PROBE)
        finally:
            self._cut(self._size)

    def close(self) -> None:
        os.close(self._file)

    def _put_aside(self, line: bytes) -> None:
        with self._rejected.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(self._rejected.parent)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fdatasync(self._file)

    def _end_of_whole_lines(self) -> int:
        end = 0
        with self._path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or line != _line(line[9:-1]):
                    _log.warning("%s: the part behind byte %d was cut short by a crash; dropped", self._path, end)
                    break
                end += len(line)
        return end


def _readable(job: Job) -> bytes:
    """The job's line, after reading it back; raises `InvalidDraft` when that does not work."""
    try:
        data = msgspec.json.encode(job)
        msgspec.json.decode(data, type=Job)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidDraft(f"the drafts can't be spooled: {error}") from error
    return _line(data)


def _line(data: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(data), data)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
