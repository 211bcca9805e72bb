"""What a tool's own description says about a call of it: its schema's digest, and what it may change.

The description is Model Context Protocol's: `{name, description, inputSchema, outputSchema, annotations}`.
Annotations are the server's word, not proof; configuration overrules them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from atdp.canonical import digest, digest_bytes
from atdp.records import Context, ContextBody, HarnessInfo, ToolInfo
from services.proxy.drafts import Content

Effect = Literal["none", "read", "idempotent_write", "write", "irreversible"]
Boundary = Literal["inside", "tenant", "external", "human"]


def effect_of(tool: dict[str, Any] | None) -> Effect | None:
    """What the tool's annotations say that a call may change; None when they say nothing.

    Destructive outweighs idempotent: deleting twice is deleting.
    """
    hints = _hints(tool)
    if hints.get("readOnlyHint") is True:
        return "read"
    if hints.get("destructiveHint") is True:
        return "irreversible"
    return "idempotent_write" if hints.get("idempotentHint") is True else None


def boundary_of(tool: dict[str, Any] | None) -> Boundary | None:
    """How far the tool's annotations say that it reaches; None when they say nothing."""
    open_world = _hints(tool).get("openWorldHint")
    return {True: "external", False: "tenant"}.get(open_world) if isinstance(open_world, bool) else None  # type: ignore[return-value]


def tool_context(agent: str, tool: dict[str, Any], server: str | None) -> tuple[Context, Content]:
    """The context of a call of this tool, and the description that the context names by its digest."""
    content = Content("application/json", orjson.dumps(tool, option=orjson.OPT_SORT_KEYS))
    info = ToolInfo(
        name=str(tool.get("name") or "unknown"),
        schema=digest_bytes(content.data),
        server=msgspec.UNSET if server is None else server,
    )
    body = ContextBody(harness=HarnessInfo(name=agent), tools=[info])
    return Context(atdp="1.0", id=digest(msgspec.to_builtins(body)), body=body), content


def _hints(tool: dict[str, Any] | None) -> dict[str, Any]:
    hints = (tool or {}).get("annotations")
    return hints if isinstance(hints, dict) else {}
