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


class PromptEdit(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded change to the agent's own system or developer text.

    `add` appends `text`; `replace` puts `text` where `old` stands, `delete` takes `old` out. An edit whose `old` is not
    in the request does nothing, and the record says so.
    """

    id: str
    op: Literal["add", "replace", "delete"]
    old: str = ""
    """The exact words that are replaced or deleted: their first occurrence."""
    text: str = ""
    provenance: tuple[str, ...] = ()


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """What is put around the agent's own prompt."""

    system_append: str = ""
    edits: tuple[PromptEdit, ...] = ()
    """Applied in order, before anything is appended."""
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


class Retrieval(msgspec.Struct, frozen=True, kw_only=True):
    """How memory and skills are chosen for a request."""

    items: int = 3
    """Memory items shown, at most."""
    overlap: float = 0.5
    """Share of a topic's words the user's message must have, stop words aside."""
    skills: int = 1
    """Procedures shown, at most."""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """A procedure: what to do, step by step, when a user asks for something of this kind."""

    id: str
    name: str
    when: str
    """Words of the requests it is for; chosen as memory topics are (`Retrieval.overlap`). `|` stands between words of
    different kinds of request, any of which will do."""
    steps: tuple[str, ...]
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    """Whose sessions it was mined from and who alone may see it; without one it holds nothing of anybody's."""
    subject: str | msgspec.UnsetType = msgspec.UNSET
    """The end user whose way of doing it this is, who alone may see it."""
    trust: Literal["vetted", "candidate"] = "candidate"
    provenance: tuple[str, ...] = ()
    created_at: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The topics of `when`."""
        return tuple(part.strip() for part in self.when.split("|"))

    @property
    def heading(self) -> str:
        """The line under which it is shown, and by which it is found in what was shown."""
        return f"Procedure ({self.name}):"


class ToolOverlay(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is told about one of the agent's tools, over what the client sent.

    The tool itself and its name stay: only its words and the bounds of its arguments change, and only ever to what
    the client's own schema also accepts (narrower, never wider).
    """

    name: str
    """The tool, by the name the client gives it."""
    description: str | msgspec.UnsetType = msgspec.UNSET
    """Replaces the client's description."""
    hint: str = ""
    """Appended to the description: when to use it, and when not (routing)."""
    arguments: dict[str, dict[str, Any]] = {}
    """By argument: JSON Schema keywords merged over the client's (`description`, `enum`, `pattern`, `examples`, …), and
    `hint`: words behind the client's description."""
    provenance: tuple[str, ...] = ()


class Guardrail(msgspec.Struct, frozen=True, kw_only=True):
    """A rule the model is told. Its wording may be changed by evolution; whether it exists is the operator's."""

    id: str
    text: str
    """Shown in the system text."""
    protected: bool = False
    """A protected rule is never reworded, weakened or dropped by an intervention."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    harness: Harness = Harness()
    memory: tuple[MemoryItem, ...] = ()
    retrieval: Retrieval = Retrieval()
    skills: tuple[Skill, ...] = ()
    tools: tuple[ToolOverlay, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()

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
