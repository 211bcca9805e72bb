"""An agent version `A = <policy, harness, memory, tools, guardrails>` as one content-addressed manifest."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from atdp import canonical


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Which weights answer."""

    base: str
    """Name the base model is served under."""
    served_name: str
    """Name to ask the server for: the base's, or the adapter's (the name *is* the version)."""
    adapter: str | None = None
    """Digest of the adapter's files; None is the base model itself."""
    path: str | None = None
    """Directory of the adapter, relative to the run-time directory."""


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """What is put around the agent's own prompt."""

    system_append: str = ""
    params: dict[str, Any] = {}
    """Decoding parameters that override the client's."""


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One fact an agent should know. Tenant and subject are hard filters: an item is never shown to another's users."""

    id: str
    tenant: str
    topic: str
    text: str
    trust: Literal["vetted", "candidate"]
    provenance: tuple[str, ...] = ()
    """Ids of the annotations or events the item was taken from."""
    created_at: str = ""
    subject: str | msgspec.UnsetType = msgspec.UNSET
    """The end user it is about, who alone may see it; without one it is about nobody in particular."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    harness: Harness = Harness()
    memory: tuple[MemoryItem, ...] = ()
    tools: dict[str, Any] = {}
    guardrails: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        """`sha256:` over the canonical form: two versions with the same digest behave the same."""
        return canonical.digest(msgspec.to_builtins(self))


class AgentVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest with its place in history."""

    agent: str
    version: str
    """The label: the version number of the registered model in MLflow."""
    digest: str
    manifest: Manifest
    parent: str | None = None
    intervention: str = "initial"
    description: str = ""
    lineage: dict[str, str] = {}
    """Snapshot hash, data gate result, evaluation numbers, decision id, approver."""
    created_at: str = ""


def memory_digest(manifest: Manifest) -> str:
    return canonical.digest([msgspec.to_builtins(item) for item in manifest.memory])
