"""Everything that came late: rewards, critiques, preferences, labels, replay checks, changes of governance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from atdp.records.common import AtdpRecord, Count, Digest, Id, Leaf, PartOfRecord, Time
from atdp.records.governance import Gov


class Target(PartOfRecord, frozen=True):
    trajectory_id: Id
    event_id: Id | UnsetType = UNSET
    step: int | UnsetType = UNSET
    token_span: tuple[int, int] | UnsetType = UNSET


class Source(PartOfRecord, frozen=True):
    kind: Literal["environment", "code", "llm_judge", "reward_model", "human", "end_user", "implicit"]
    id: str | UnsetType = UNSET
    version: str | UnsetType = UNSET


class Scale(PartOfRecord, frozen=True):
    min: float | UnsetType = UNSET
    max: float | UnsetType = UNSET
    higher_is_better: bool | UnsetType = UNSET


class AnnotationDraft(AtdpRecord, frozen=True, kw_only=True, tag="annotation"):
    """A signal that came late: reward, critique, preference, label, replay check, change of governance."""

    atdp: Literal["1.0"]
    id: Id
    trajectory_id: Id
    kind: Literal["reward", "critique", "preference", "label", "replay_check", "governance"]
    name: str
    targets: Annotated[list[Target], Meta(min_length=1)]
    source: Source
    time: Time
    """When it was written; `observed_at` is when it happened."""
    value: float | bool | UnsetType | None = UNSET
    label: str | UnsetType = UNSET
    explanation: Leaf | UnsetType = UNSET
    scale: Scale | UnsetType = UNSET
    chosen: Target | UnsetType = UNSET
    rejected: Target | UnsetType = UNSET
    patch: Gov | UnsetType = UNSET
    confidence: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    optimizable: bool | UnsetType = UNSET
    """May a trainer use it directly?"""
    evidence: list[Id] | UnsetType = UNSET
    observed_at: Time | UnsetType = UNSET
    supersedes: Id | UnsetType = UNSET
    retracted: bool | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET


class Annotation(AnnotationDraft, frozen=True, tag="annotation"):
    """An annotation in its chain."""

    seq: Count
    prev_hash: Digest | None
    hash: Digest
