"""The header of one task or conversation."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from atdp.records.common import AtdpRecord, Count, Digest, Id, PartOfRecord, Time
from atdp.records.governance import Gov


class Agent(PartOfRecord, frozen=True):
    name: str
    id: str | UnsetType = UNSET
    version: str | UnsetType = UNSET


class Task(PartOfRecord, frozen=True):
    id: str | UnsetType = UNSET
    group_id: str | UnsetType = UNSET
    trial: int | UnsetType = UNSET
    split: str | UnsetType = UNSET


class Parent(PartOfRecord, frozen=True):
    trajectory_id: Id | UnsetType = UNSET
    event_id: Id | UnsetType = UNSET
    rel: Literal["subagent", "continuation", "replay", "branch"] | UnsetType = UNSET


class Origin(PartOfRecord, frozen=True):
    producer: str | UnsetType = UNSET
    format: str | UnsetType = UNSET
    imported_from: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


class TrajectoryDraft(AtdpRecord, frozen=True, kw_only=True, tag="trajectory"):
    """The header of one task or conversation; it is always record 0 of its chain."""

    atdp: Literal["1.0"]
    trajectory_id: Id
    time: Time
    agent: Agent
    gov: Gov
    session_id: Id | UnsetType = UNSET
    task: Task | UnsetType = UNSET
    parent: Parent | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET


class Trajectory(TrajectoryDraft, frozen=True, tag="trajectory"):
    """A trajectory header in its chain."""

    seq: Count
    prev_hash: Digest | None
    hash: Digest
