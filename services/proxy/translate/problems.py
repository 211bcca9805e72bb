"""Errors of OpenAI-style servers, whatever form they have."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import Problem


def problem(error: Any, status: int) -> Problem:
    """What an error of this status says."""
    if not isinstance(error, dict):
        return Problem(status, str(error), "upstream_error")
    code, kind = error.get("code"), error.get("type")
    return Problem(
        status,
        str(error.get("message") or error),
        str(kind or "upstream_error"),
        error.get("param"),
        None if code is None else str(code),
    )


def in_stream(error: dict[str, Any]) -> Problem:
    """What an error inside a stream says: its code is its status where it is one."""
    code = error.get("code")
    said = code if isinstance(code, int) else int(code) if isinstance(code, str) and code.isdigit() else 500
    return problem(error, said if 400 <= said < 600 else 500)
