"""Everything versioned that a step was decided under, as one content-addressed record."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from atdp.records.common import AtdpRecord, Digest, PartOfRecord


class Model(PartOfRecord, frozen=True):
    name: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    response_name: str | UnsetType = UNSET
    checkpoint: str | UnsetType = UNSET
    adapter: str | UnsetType = UNSET
    tokenizer: str | UnsetType = UNSET
    chat_template: Digest | UnsetType = UNSET


class HarnessInfo(PartOfRecord, frozen=True):
    name: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    fingerprint: str | UnsetType = UNSET


class PromptInfo(PartOfRecord, frozen=True):
    template: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    fingerprint: Digest | UnsetType = UNSET


class ToolInfo(PartOfRecord, frozen=True):
    name: str
    schema: Digest
    """Names the part that holds the tool as the client described it."""
    version: str | UnsetType = UNSET
    server: str | UnsetType = UNSET


class SkillInfo(PartOfRecord, frozen=True):
    name: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


class ContextBody(PartOfRecord, frozen=True):
    """Everything versioned that a step was decided under."""

    model: Model | UnsetType = UNSET
    harness: HarnessInfo | UnsetType = UNSET
    prompt: PromptInfo | UnsetType = UNSET
    tools: list[ToolInfo] | UnsetType = UNSET
    skills: list[SkillInfo] | UnsetType = UNSET
    retrieval: dict[str, Any] | UnsetType = UNSET
    memory: dict[str, Any] | UnsetType = UNSET
    guardrails: dict[str, Any] | UnsetType = UNSET
    router: dict[str, Any] | UnsetType = UNSET
    env: dict[str, Any] | UnsetType = UNSET


class Context(AtdpRecord, frozen=True, kw_only=True, tag="context"):
    """A context record: not chained, because its id is the digest of its body."""

    atdp: Literal["1.0"]
    id: Digest
    body: ContextBody
