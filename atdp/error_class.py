"""What kind of failure a text speaks of: a few classes, so that failures can be counted and compared."""

from __future__ import annotations

import re

_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("unknown_tool", r"\b(unknown|no such|undefined) (tool|function)\b|\b(tool|function) \S+ (was )?not found\b"),
        (
            "invalid_arguments",
            r"\bvalidation errors?\b|\binvalid (argument|parameter|param|input)s?\b|\bmissing required\b|"
            r"\bfield required\b|\bis a required property\b|\bunexpected keyword argument\b|"
            r"\bmissing \d+ required (positional|keyword)",
        ),
        ("rate_limited", r"\brate.?limit|\btoo many requests\b|\b429\b"),
        (
            "permission_denied",
            r"\bpermission denied\b|\bforbidden\b|\bunauthori[sz]ed\b|\baccess denied\b|\bnot allowed\b|\b40[13]\b",
        ),
        ("timeout", r"\btimed? ?out\b|\bdeadline exceeded\b"),
        ("unavailable", r"\bconnection (refused|reset|error)\b|\bservice unavailable\b|\bunreachable\b|\b50[234]\b"),
        ("not_found", r"\bnot found\b|\bdoes not exist\b|\bno such\b|\bunknown resource\b|\b404\b"),
    )
)
"""The first that fits; the more specific ones come first."""

_LOOKED_AT = 4000
_FAILED = re.compile(
    r"^\W*(error|exception|traceback|failed|failure|fatal|invalid|unknown|not found|permission denied)\b|"
    r"\"(error|is_?error)\": *(true|\")",
    re.IGNORECASE,
)
_BEGINNING = 300


def error_class(text: str, otherwise: str = "tool_error") -> str:
    """The class of an error message; `otherwise` when it says nothing that is known here."""
    beginning = text[:_LOOKED_AT]
    return next((name for name, pattern in _CLASSES if pattern.search(beginning)), otherwise)


def tells_failure(text: str) -> bool:
    """Does a tool's result begin as a failure does? For clients that report every result as one that came."""
    return bool(_FAILED.search(text[:_BEGINNING]))
