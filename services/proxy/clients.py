"""The session ids that real clients put on the wire, and the calls they make beside their main line.

Nothing here is asked of a client: whoever sends no id is found by what was said before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from atdp import messages

Line = Literal["main", "side", "subagent", "prewarm"]
"""`side`: titles, summaries and the like; `prewarm`: asks for nothing to be generated."""

MAX_ID_LENGTH = 200
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""No id has these: one travels in headers, and names rows."""


class Claim(msgspec.Struct, frozen=True):
    """What a request says about where it belongs."""

    session_id: str | None = None
    parent_session_id: str | None = None
    """The session that started this one's sub-agent."""
    line: Line | None = None
    """None: to be told from what is said."""


def claim(header: Mapping[str, str], body: Mapping[str, Any], tag: str | None) -> Claim:
    """Read a request: `header` by lower-case name, the JSON body, and a tag from its path (`/s/<tag>/v1/…`).

    The first of these decides: our own header, the path's tag, a known client's own id, a conversation's
    id, a session named in the metadata.
    """
    line: Line | None = "prewarm" if body.get("generate") is False else None
    if own := header.get("x-evoplane-session-id"):
        return Claim(own, line=line)
    if tag:
        return Claim(f"tag:{tag}", line=line)
    if claude := header.get("x-claude-code-session-id") or _claude_session(body):
        return _claude(claude, header, body)
    for source, value in (
        ("codex", header.get("thread-id") or header.get("session-id") if "originator" in header else None),
        ("session", body.get("session_id")),
        ("conversation", _conversation(body)),
        ("metadata", _named_in_metadata(body)),
    ):
        if isinstance(value, str) and value:
            return Claim(f"{source}:{value}"[:MAX_ID_LENGTH], line=line)
    return Claim(line=line)


def _claude(session: str, header: Mapping[str, str], body: Mapping[str, Any]) -> Claim:
    """Claude Code names its sub-agents, and asks for titles with a schema and without tools."""
    session_id = f"claude:{session}"[:MAX_ID_LENGTH]
    agent = header.get("x-claude-code-agent-id")
    if agent:
        parent = header.get("x-claude-code-parent-agent-id")
        above = f"{session_id}/{parent}" if parent else session_id
        return Claim(f"{session_id}/{agent}"[:MAX_ID_LENGTH], above[:MAX_ID_LENGTH], "subagent")
    output = body.get("output_config")
    titled = isinstance(output, dict) and "format" in output and not body.get("tools")
    return Claim(session_id, line="side" if titled else None)


def _claude_session(body: Mapping[str, Any]) -> str | None:
    """`metadata.user_id` of Claude Code is an object written as text."""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str) or not user.startswith("{"):
        return None
    value = messages.loads_or_none(user)
    session = value.get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) and session else None


def _conversation(body: Mapping[str, Any]) -> Any:
    value = body.get("conversation")
    return value.get("id") if isinstance(value, dict) else value


def _named_in_metadata(body: Mapping[str, Any]) -> Any:
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return None
    names = ("session_id", "thread_id", "conversation_id")
    return next((metadata[name] for name in names if isinstance(metadata.get(name), str)), None)
