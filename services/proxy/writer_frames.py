"""What the gateway and its writer process say to each other, over one stream socket.

A frame is its length (4 bytes, little endian), its kind (1 byte) and its body. A job's body is the number by which
it is answered (8 bytes), how many exchanges are under way (4 bytes), whether its sender wants to know as soon as it is
safe (1 byte) and what was submitted, in two parts: the length of the first (4 bytes), which may have been sent ahead,
then both. Everything else is one message.
All of it is MessagePack: it holds what the drafts hold, NaN and bytes included.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from registry.keyring import TenantKeys
from registry.tenant_policy import TenantPolicy
from services.proxy.drafts import InvalidDraft, Stored, StoreDraft, StoreUnavailable
from services.proxy.protection import Blocked, Found
from services.proxy.redaction.failure import described
from services.proxy.tenant_writer import Result, State, StoreCounters

JOB, AHEAD, MESSAGE = b"J", b"A", b"M"
MAX_FRAME_BYTES = 2**31
"""Longer than anything a request may bring: a length beyond it is a damaged stream."""

_HEAD = struct.Struct("<Ic")
_JOB_HEAD = struct.Struct("<QI?")
_LENGTH = struct.Struct("<I")


Fault = Literal["draft", "redaction", "store"]
_FAULTS: dict[Fault, type[Exception]] = {"draft": InvalidDraft, "redaction": Blocked, "store": StoreUnavailable}
"""From the narrowest kind to the widest."""


class Part(msgspec.Struct, frozen=True):
    """Drafts of one job, in their order: the first of them, or the rest."""

    tenant: str
    drafts: list[StoreDraft]
    found: dict[str, Found] | None = None
    """What was found in their trajectories by whoever has redacted and sealed them; None where nobody has."""


class Govern(msgspec.Struct, frozen=True, tag=True):
    """The policies and keys under which what follows is stored."""

    policies: Mapping[str, TenantPolicy] = {}
    tenant_keys: Mapping[str, TenantKeys] = {}


class Open(msgspec.Struct, frozen=True, tag=True):
    """The first message: which logs to write."""

    settings: dict[str, Any]
    """What of the settings says so, secrets in the clear: they go through the socket only."""
    governed: Govern | None = None
    """How what comes is to be redacted and sealed, and what lies in the spool is; None where nothing is."""
    succeeds: bool = False
    """Was there a writer before, that may have done some of what comes?"""


class CloseIdle(msgspec.Struct, frozen=True, tag=True):
    number: int
    tenants: list[str]
    before: str


class EraseKey(msgspec.Struct, frozen=True, tag=True):
    number: int
    tenant: str
    trajectory_id: str


class TellFound(msgspec.Struct, frozen=True, tag=True):
    """Asks what was found so far in trajectories that something is redacted for elsewhere."""

    number: int
    tenant: str
    trajectories: list[str]


Order = Open | Govern | CloseIdle | EraseKey | TellFound
"""The end of the stream is one more: write what has come, then end."""


class Health(msgspec.Struct, frozen=True, tag=True):
    """How the writer is: sent when that changes."""

    counters: StoreCounters
    in_trouble: dict[str, State]
    """Tenants whose log can't be written now."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    health: Health


class NotOpened(msgspec.Struct, frozen=True, tag=True):
    """The logs can't be written at all; the process ends."""

    failure: str
    misconfigured: bool


class Safe(msgspec.Struct, frozen=True, tag=True):
    """This job is on the disk; what becomes of it in its place is told as of any other."""

    number: int


class Owes(msgspec.Struct, frozen=True, tag=True):
    """This job is safe, and nothing takes it for now: what becomes of it is told when it has its place."""

    number: int


class Written(msgspec.Struct, frozen=True, tag=True):
    """What became of the jobs of a commit, in their order."""

    numbers: list[int]
    stored: list[list[Stored] | None]
    """None for a job that is not stored, which `refused` tells about."""
    refused: list[tuple[Fault, str]]
    """Whose fault it is, and why."""
    health: Health


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The answer to `CloseIdle`."""

    number: int
    ids: dict[str, list[str]]


class Erased(msgspec.Struct, frozen=True, tag=True):
    """The answer to `EraseKey`."""

    number: int
    failure: str = ""


class Told(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TellFound`."""

    number: int
    found: dict[str, Found]


Answer = Opened | NotOpened | Health | Safe | Owes | Written | Closed | Erased | Told

_encoder = msgspec.msgpack.Encoder()
_parts = msgspec.msgpack.Decoder(Part)
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_in_json = msgspec.json.Decoder(Part)


def packed(part: Part) -> bytes:
    """Drafts as they travel. Raises `InvalidDraft` for what no record could hold."""
    try:
        try:
            return _encoder.encode(part)
        except OverflowError:
            # a number beyond 64 bits, which JSON holds
            return msgspec.json.encode(part)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidDraft(f"the drafts can't be stored: {described(error)}") from error


def job(first: bytes, rest: bytes) -> bytes:
    """A job of what was sent ahead (or nothing) and the rest, each as `packed` gives it."""
    return _LENGTH.pack(len(first)) + first + rest


class JobHead(NamedTuple):
    """What stands before a job."""

    number: int
    expecting: int
    """How many exchanges were under way when it was sent."""
    early: bool
    """Does its sender want to know as soon as it is safe, before it has its place?"""


def job_frame(head: JobHead, job: bytes) -> bytes:
    return _HEAD.pack(_JOB_HEAD.size + len(job), JOB) + _JOB_HEAD.pack(*head) + job


def ahead_frame(packed: bytes) -> bytes:
    """To be made ready, if there is nothing else to do: the first part of a job to come."""
    return _HEAD.pack(len(packed), AHEAD) + packed


def frame(message: Order | Answer) -> bytes:
    body = _encoder.encode(message)
    return _HEAD.pack(len(body), MESSAGE) + body


def job_of(body: memoryview) -> tuple[JobHead, memoryview]:
    """A job and its head."""
    return JobHead(*_JOB_HEAD.unpack_from(body)), body[_JOB_HEAD.size :]


def parts_of(job: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """The two parts of a job."""
    (length,) = _LENGTH.unpack_from(job)
    at = _LENGTH.size
    return bytes(job[at : at + length]), job[at + length :]


def part_of(packed: bytes | memoryview) -> Part:
    """Raises `InvalidDraft` when the writer can't make out what was sent."""
    try:
        return (_in_json if packed[:1] == b"{" else _parts).decode(packed)
    except msgspec.MsgspecError as error:
        raise InvalidDraft(f"the drafts can't be stored: {described(error)}") from error


def order_of(body: memoryview) -> Order:
    return _orders.decode(body)


def answer_of(body: memoryview) -> Answer:
    return _answers.decode(body)


def written(numbers: list[int], results: list[Result], health: Health) -> Written:
    stored = [result if isinstance(result, list) else None for result in results]
    refused = [(_fault(r), str(r)) for r in results if not isinstance(r, list)]
    return Written(numbers, stored, refused, health)


def results_of(message: Written) -> Iterator[tuple[int, Result]]:
    """What became of each job, by its number."""
    refused = iter(message.refused)
    for number, stored in zip(message.numbers, message.stored, strict=True):
        if stored is not None:
            yield number, stored
        else:
            fault, why = next(refused)
            yield number, _FAULTS[fault](why)


def _fault(refusal: Exception) -> Fault:
    return next((fault for fault, kind in _FAULTS.items() if isinstance(refusal, kind)), "store")


class Frames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._begun = bytearray()
        """What has come of a frame that is not complete."""

    def feed(self, data: bytes) -> list[tuple[bytes, memoryview]]:
        """The frames that are complete now: kind and body. Raises `ValueError` for what is no frame."""
        if self._begun:
            self._begun += data
            if _missing(self._begun, 0):
                return []
            data, self._begun = bytes(self._begun), bytearray()
        found: list[tuple[bytes, memoryview]] = []
        view, at = memoryview(data), 0
        while not _missing(data, at):
            length, kind = _HEAD.unpack_from(data, at)
            found.append((kind, view[at + _HEAD.size : at + _HEAD.size + length]))
            at += _HEAD.size + length
        self._begun += view[at:]
        return found


def _missing(data: bytes | bytearray, at: int) -> bool:
    """Is the frame that begins there not all there?"""
    if len(data) - at < _HEAD.size:
        return True
    length, _ = _HEAD.unpack_from(data, at)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes: the stream is damaged")
    return bool(len(data) - at < _HEAD.size + length)
