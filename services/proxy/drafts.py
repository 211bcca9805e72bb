"""What can be handed to the event store: ATDP drafts, and what only a store knows."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple

import msgspec

from atdp.records import AnnotationDraft, Context, EventDraft, TrajectoryDraft


class Content(msgspec.Struct, frozen=True, tag_field="record", tag="content"):
    """Bytes to keep under their digest, such as a tool's schema that a context names."""

    media_type: str
    data: bytes


class Signal(msgspec.Struct, frozen=True, tag_field="record", tag="signal"):
    """An annotation whose trajectory is for the store to find; it may arrive before its target.

    `annotation.trajectory_id` and its target are placeholders until then.
    """

    target_kind: Literal["event", "trajectory", "session"]
    target: str
    agent: str
    """Only what is this agent's is meant."""
    annotation: AnnotationDraft
    purpose: str | None = None
    """Of several sessions with one id, that of this purpose is meant; None is any."""


class Close(msgspec.Struct, frozen=True, tag_field="record", tag="close"):
    """The trajectory has ended. Signals may still arrive."""

    trajectory_id: str
    reason: str


class SealedBlob(msgspec.Struct, frozen=True, tag_field="record", tag="sealed"):
    """A sealed leaf's ciphertext, which records name by `{"sealed": id, …}`."""

    id: str
    trajectory_id: str
    data: bytes


class TrajectoryKey(msgspec.Struct, frozen=True, tag_field="record", tag="trajectory_key"):
    """A trajectory's data key, wrapped by version `key_version` of the tenant's key; the first one stays."""

    trajectory_id: str
    key_version: int
    wrapped: bytes


class Answer(msgspec.Struct, frozen=True, tag_field="record", tag="answer"):
    """A provider's id of an answer, and the call that has it: a client may go on from it at any time."""

    id: str
    event_id: str


StoreDraft = (
    TrajectoryDraft
    | Context
    | EventDraft
    | AnnotationDraft
    | Content
    | Signal
    | Close
    | SealedBlob
    | TrajectoryKey
    | Answer
)


class Stored(msgspec.Struct, frozen=True):
    """What became of one draft."""

    id: str
    trajectory_id: str | None = None
    seq: int | None = None
    """Place in the chain; None for what has none and for what still waits."""
    bound: bool = True
    """Is it part of a trajectory now? A signal for an unknown target is not, yet."""
    spooled: bool = False
    """Durable in the spool, not yet in the store."""


class Ahead(msgspec.Struct, frozen=True):
    """Drafts that a store was told of before the others of their job were there."""

    drafts: list[StoreDraft]
    packed: bytes

    def begins(self, drafts: list[StoreDraft]) -> bool:
        """Are these very drafts the first of a job?"""
        return len(self.drafts) <= len(drafts) and all(a is b for a, b in zip(self.drafts, drafts, strict=False))


class Submitted(NamedTuple):
    """Drafts on their way into the log."""

    safe: asyncio.Future[Any]
    """Are they on the disk?"""
    placed: asyncio.Future[list[Stored]]
    """What became of them in the log: `safe` itself where that says so."""


class StoreUnavailable(Exception):
    """Neither the store nor its spool could make the drafts durable: they must not be acknowledged."""


class InvalidDraft(ValueError):
    """A draft the store can't place, whatever its state: it names a trajectory that was never opened."""
