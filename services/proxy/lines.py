"""The main line of a conversation, told from the calls beside it."""

from __future__ import annotations

from services.proxy.clients import Line


def line_of(
    *, extends: bool, tools: bool, system: bytes, main_tools: bool, main_system: bytes, main_known: bool, subagent: bool
) -> Line:
    """Titles, summaries and other side calls ask something else than the conversation does.

    What goes on from an answer of the main line is of it, and so is whatever comes first. Another request is
    beside it when it leaves the tools out that the main line has, or follows other instructions without tools.
    """
    if extends or not main_known:
        return "subagent" if subagent else "main"
    if main_tools and not tools:
        return "side"
    if not tools and system != main_system:
        return "side"
    return "subagent" if subagent else "main"
