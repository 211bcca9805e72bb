"""Where a tenant's drafts wait while its log can't be written: append-only segments, forced to the disk.

A frame a job: 8 hex digits of CRC-32, 8 of the length, JSON, a newline. A segment is removed only after
everything in it was committed, so a crash while draining repeats work and loses none: whatever is
stored is idempotent by id. A frame cut short at the end of a segment was never acknowledged and is dropped.
What is damaged, or can't be placed, goes to `rejected.jsonl` beside the segments, for a person to look at;
what comes after it is read on.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from evoplane.files import sync_folder
from services.proxy import faults
from services.proxy.drafts import InvalidDraft, StoreDraft

_log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
"""Enough for an hour of a busy gateway; beyond it the gateway refuses rather than fill the disk."""
SEGMENT_BYTES = 8 * 2**20
"""A segment that has reached this is closed: what a crash while draining repeats, at most."""

_HEADER_BYTES = 18
_PROBE = b"00000000 00000005 probe\n"


class Job(msgspec.Struct, frozen=True):
    """Drafts of one tenant that are stored together or not at all."""

    tenant: str
    drafts: list[StoreDraft]


class Batch(msgspec.Struct, frozen=True):
    """The oldest jobs that wait, and where in the spool they end."""

    jobs: list[Job]
    segment: int
    end: int


class SpoolFull(OSError):
    """The spool holds as much as it may."""


class Spool:
    """The segments in one folder; one process, one thread."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._sizes = {int(path.stem): path.stat().st_size for path in sorted(folder.glob("[0-9]*.jsonl"))}
        """Segments that wait, oldest first, with their bytes."""
        self._last = max(self._sizes, default=0)
        self._file: int | None = None
        """The last segment, while it may be written to."""
        self._offset = 0
        """How much of the oldest segment is drained."""

    @property
    def empty(self) -> bool:
        return not self._sizes

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(self._sizes.values())

    def append(self, jobs: Iterable[Job]) -> list[InvalidDraft | None]:
        """Make the jobs durable, all or none; raises `OSError` when that is impossible.

        A job that could not be read back is left out and named in the answer, which has one item a job:
        it must not be acknowledged.
        """
        frames: list[bytes] = []
        refused: list[InvalidDraft | None] = []
        for job in jobs:
            try:
                frames.append(_readable(job))
                refused.append(None)
            except InvalidDraft as error:
                refused.append(error)
        if frames:
            data = b"".join(frames)
            if self.size + len(data) > self._max_bytes:
                raise SpoolFull(f"the spool {self._folder} holds {self.size} bytes and may hold {self._max_bytes}")
            self._append(data)
        return refused

    def read(self, max_jobs: int, max_bytes: int) -> Batch | None:
        """The oldest jobs that wait; None when none do. A frame that can't be read is put aside."""
        if not self._sizes:
            return None
        number = min(self._sizes)
        if not self._path(number).exists():
            self._taken_away(number)
            return self.read(max_jobs, max_bytes)
        jobs: list[Job] = []
        offset, until = self._offset, self._sizes[number]
        with self._path(number).open("rb") as segment:
            while offset < until and len(jobs) < max_jobs and offset - self._offset < max_bytes:
                payload, offset = self._next(segment, offset, until)
                if payload is not None:
                    self._decode(payload, jobs)
        return Batch(jobs, number, offset)

    def drained(self, batch: Batch) -> None:
        """Forget a batch: it is in the log now."""
        self._offset = batch.end
        if batch.end < self._sizes[batch.segment]:
            return
        faults.reach("before_segment_removal")
        if batch.segment == self._last:
            self._close_segment()
        self._path(batch.segment).unlink(missing_ok=True)
        del self._sizes[batch.segment]
        self._offset = 0
        faults.reach("after_segment_removal")
        sync_folder(self._folder)

    def reject(self, job: Job) -> None:
        """Put a job aside that the log won't take; durable when this returns, raises `OSError` when it can't be."""
        self._put_aside(_frame(msgspec.json.encode(job)))

    def probe(self) -> None:
        """Raises `OSError` when the spool could not take a job now."""
        if self.size >= self._max_bytes:
            raise SpoolFull(f"the spool {self._folder} is full")
        self._folder.mkdir(parents=True, exist_ok=True)
        probe = self._folder / "probe"
        try:
            _write_new(probe, _PROBE)
        finally:
            probe.unlink(missing_ok=True)

    def close(self) -> None:
        self._close_segment()

    def _append(self, data: bytes) -> None:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self._taken_away(self._last)  # what is written there now nobody would ever read
        if self._file is None or self._sizes[self._last] >= self._segment_bytes:
            self._rotate()
        assert self._file is not None
        try:
            faults.reach("before_spool_write")
            half = len(data) // 2
            _write(self._file, data[:half])
            faults.reach("in_spool_write")
            _write(self._file, data[half:])
            faults.reach("after_spool_write")
            os.fdatasync(self._file)
            faults.reach("after_spool_sync")
        except OSError:
            self._give_up_segment()
            raise
        self._sizes[self._last] += len(data)

    def _rotate(self) -> None:
        self._close_segment()
        number = self._last + 1
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._last = number
        self._sizes[number] = 0
        faults.reach("in_spool_rotation")
        sync_folder(self._folder)

    def _taken_away(self, number: int) -> None:
        """A segment was removed, most likely with its directory: go on without it."""
        _log.error("%s was taken away with %d bytes in it", self._path(number), self._sizes[number])
        if number == self._last:
            self._close_segment()
        del self._sizes[number]
        self._offset = 0

    def _give_up_segment(self) -> None:
        """Nothing more is written behind a write that failed; what it left is cut off if that is possible."""
        assert self._file is not None
        size = self._sizes[self._last]
        try:
            os.ftruncate(self._file, size)
        finally:
            self._close_segment()
            if size == 0:
                self._path(self._last).unlink(missing_ok=True)
                del self._sizes[self._last]

    def _close_segment(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _next(self, segment: BinaryIO, offset: int, until: int) -> tuple[bytes | None, int]:
        """The payload of the frame at `offset`, None when there is none to be had, and where the next one begins."""
        segment.seek(offset)
        header = segment.read(min(_HEADER_BYTES, until - offset))
        length = _length(header)
        if length is not None and offset + _HEADER_BYTES + length + 1 <= until:
            payload = segment.read(length)
            if header[:8] == b"%08x" % zlib.crc32(payload):
                return payload, offset + _HEADER_BYTES + length + 1
        segment.seek(offset)
        line = segment.readline(until - offset)
        if line.endswith(b"\n"):
            _log.error("%s: the frame at byte %d is damaged and is put aside", segment.name, offset)
            self._put_aside(line)
        else:
            _log.warning("%s: the part behind byte %d was cut short by a crash; dropped", segment.name, offset)
        return None, offset + len(line)

    def _decode(self, payload: bytes, jobs: list[Job]) -> None:
        try:
            jobs.append(msgspec.json.decode(payload, type=Job))
        except msgspec.DecodeError:
            _log.exception("a spooled job can't be decoded and is put aside: %r", payload[:200])
            self._put_aside(_frame(payload))

    def _put_aside(self, frame: bytes) -> None:
        with (self._folder / "rejected.jsonl").open("ab") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08}.jsonl"


def _readable(job: Job) -> bytes:
    """The job's frame, after reading it back; raises `InvalidDraft` when that does not work."""
    try:
        data = msgspec.json.encode(job)
        msgspec.json.decode(data, type=Job)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidDraft(f"the drafts can't be spooled: {error}") from error
    return _frame(data)


def _frame(data: bytes) -> bytes:
    return b"%08x %08x %b\n" % (zlib.crc32(data), len(data), data)


def _length(header: bytes) -> int | None:
    """What a frame's header says about its payload; None when it is no header."""
    if len(header) < _HEADER_BYTES or header[8:9] != b" " or header[17:18] != b" ":
        return None
    try:
        return int(header[9:17], 16)
    except ValueError:
        return None


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _write_new(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write(file, data)
        os.fdatasync(file)
    finally:
        os.close(file)
