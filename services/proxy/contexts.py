"""The context record of a call: everything versioned it was decided under, content-addressed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from atdp.canonical import digest, digest_bytes
from atdp.records import Context, ContextBody, HarnessInfo, Model, SkillInfo, ToolInfo
from registry.manifest import AgentVersion
from services.proxy.drafts import Content, Stored, StoreDraft

_REMEMBERED = 256
_BYTES = 32 * 2**20
"""Contexts kept ready, and of their tools' texts: a client may send other tools with every request, and large ones."""


class ContextBook:
    """Makes contexts, and remembers which tenant's log has which, and under what id: redaction may have changed it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], tuple[Context, list[Content]]] = {}
        self._bytes = 0
        self._stored: dict[tuple[str, str], str] = {}

    def context(
        self, tenant: str, version: AgentVersion, upstream: str, model: str | None, tools: Any
    ) -> tuple[Context, list[Content]]:
        """The context of a call, and the tools' texts it names.

        `model` is the name that was asked for at an upstream that isn't our worker; None is the version's policy.
        """
        items = tools if isinstance(tools, list) else []
        tools_digest = digest_bytes(orjson.dumps(items))
        key = (tenant, version.agent, version.digest, version.version, upstream, model or "", tools_digest)
        made = self._made.get(key)
        if made is None:
            made = _make(tenant, version, upstream, model, items)
            self._remember(key, made)
        return made

    def _remember(self, key: tuple[str, ...], made: tuple[Context, list[Content]]) -> None:
        self._made[key] = made
        self._bytes += _size(made)
        while len(self._made) > _REMEMBERED or self._bytes > _BYTES:
            self._bytes -= _size(self._made.pop(next(iter(self._made))))

    def unstored(self, tenant: str, context: Context, contents: list[Content]) -> list[Context | Content]:
        """What must go to the log along with the next event; nothing when it is there."""
        return [] if (tenant, context.id) in self._stored else [*contents, context]

    def stored_as(self, tenant: str, context: Context) -> str | None:
        """What the log calls the context; None when it is not known to be there."""
        return self._stored.get((tenant, context.id))

    def named(self, tenant: str, context: Context) -> str:
        """What an event calls the context."""
        return self.stored_as(tenant, context) or context.id

    def mark_stored(self, tenant: str, drafts: Iterable[StoreDraft], stored: Iterable[Stored]) -> None:
        """The log has these drafts, as the first of `stored` say."""
        for draft, item in zip(drafts, stored, strict=False):
            if isinstance(draft, Context):
                self._stored[tenant, draft.id] = item.id

    def forget(self, tenant: str) -> None:
        """The tenant's log may have lost what it had."""
        self._stored = {known: id for known, id in self._stored.items() if known[0] != tenant}


def _size(made: tuple[Context, list[Content]]) -> int:
    return sum(len(content.data) for content in made[1])


def bare_context(agent: str) -> Context:
    """What is known about an event that did not come with a model call."""
    return _sealed(ContextBody(harness=HarnessInfo(name=agent)))


def _make(
    tenant: str, version: AgentVersion, upstream: str, model: str | None, tools: list[Any]
) -> tuple[Context, list[Content]]:
    policy = version.manifest.policy
    memory = [msgspec.to_builtins(item) for item in version.manifest.memory if item.tenant == tenant]
    contents = [Content("application/json", orjson.dumps(tool)) for tool in tools]
    if model is None:
        adapter = policy.adapter if policy.adapter is not None else msgspec.UNSET
        answering = Model(provider=upstream, name=policy.served_name, checkpoint=policy.base, adapter=adapter)
    else:
        answering = Model(provider=upstream, name=model)
    body = ContextBody(
        model=answering,
        harness=HarnessInfo(name=version.agent, version=version.version, fingerprint=version.digest),
        tools=[
            ToolInfo(name=_tool_name(tool), schema=digest_bytes(content.data))
            for tool, content in zip(tools, contents, strict=True)
        ],
        memory={"snapshot": digest(memory), "items": len(memory)},
        guardrails={"snapshot": digest(msgspec.to_builtins(version.manifest.guardrails))},
        skills=_skills(tenant, version) or msgspec.UNSET,
        retrieval=msgspec.to_builtins(version.manifest.retrieval)
        if memory or version.manifest.skills
        else msgspec.UNSET,
    )
    return _sealed(body), contents


def _skills(tenant: str, version: AgentVersion) -> list[SkillInfo]:
    """The procedures the tenant may be shown."""
    mine = [skill for skill in version.manifest.skills if skill.tenant in (msgspec.UNSET, tenant)]
    return [SkillInfo(name=skill.name, digest=digest(msgspec.to_builtins(skill))) for skill in mine]


def _sealed(body: ContextBody) -> Context:
    return Context(atdp="1.0", id=digest(msgspec.to_builtins(body)), body=body)


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "unknown"
    function = tool.get("function")
    named = function if isinstance(function, dict) else tool
    return str(named.get("name") or tool.get("type") or "unknown")
