"""Which call of a model an operation carries out.

A report that names the provider's call id is joined by it. Tool servers never see that id: there, the
call that waits under the same name with the same arguments is meant. Clients put the server's name
before the tool's (`mcp__crm__find`, `crm_find`), so such a name is the same tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.proxy.sessions import PendingCall

_SEPARATORS = ("__", "_", "-", ".", "/", ":")


def find_pending(
    calls: Mapping[str, PendingCall], call_id: str | None, name: str | None, arguments: Any, server: str | None = None
) -> str | None:
    """The id of the waiting call that this operation is, or None.

    Of several equal ones the first is taken: parallel calls are carried out in the order they were made.
    """
    if call_id is not None:
        return call_id if call_id in calls else None
    if name is None:
        return None
    for id, pending in calls.items():
        if same_tool(pending.name, name, server) and _same(pending.arguments, arguments):
            return id
    return None


def same_tool(called: str, name: str, server: str | None) -> bool:
    """Is `called`, as the model knows it, the tool `name` of `server`?"""
    if called == name:
        return True
    if server is None or not called.endswith(name):
        return False
    prefix = called[: -len(name)]
    return any(prefix.endswith(server + separator) for separator in _SEPARATORS)


def _same(called: Any, sent: Any) -> bool:
    """Equal arguments; a tool without any is called with none at all or with an empty object."""
    return (called or {}) == (sent or {})
