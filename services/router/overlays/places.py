"""Changing one place of a request and changing it back, copying nothing else.

The containers on the way to a place are copied before they are changed: the client's request shares the rest.
"""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import Path, Place


def holder(request: dict[str, Any], path: Path) -> Any:
    """The container at `path`, a copy of it set into copies of those above it."""
    found: Any = request
    for step in path:
        inner = found[step]
        found[step] = inner = dict(inner) if isinstance(inner, dict) else list(inner)
        found = inner
    return found


def text_at(request: dict[str, Any], path: Path) -> str:
    found: Any = request
    for step in path:
        found = found[step]
    return str(found)


def put(request: dict[str, Any], place: Place, text: str) -> None:
    """Add text to the place that a dialect named for it."""
    match place.form:
        case "text":
            splice(request, place, "", text)
        case "part":
            holder(request, place.path).append(_part(text))
        case "message":
            holder(request, place.path).insert(0, _message(text))
        case "field":
            holder(request, place.path[:-1])[place.path[-1]] = text.lstrip("\n")
        case "head":
            splice(request, place, "", _paragraph(text))


def take(request: dict[str, Any], place: Place, text: str) -> None:
    """Take out again what `put` put there. Raises `ValueError` when it isn't there."""
    match place.form:
        case "text":
            splice(request, place, text, "")
        case "part":
            parts = holder(request, place.path)
            _expect(bool(parts) and parts.pop() == _part(text))
        case "message":
            messages = holder(request, place.path)
            _expect(bool(messages) and messages.pop(0) == _message(text))
        case "field":
            within, name = holder(request, place.path[:-1]), place.path[-1]
            _expect(within[name] == text.lstrip("\n"))
            restore(within, name, place.before)
        case "head":
            splice(request, place, _paragraph(text), "")


def splice(request: dict[str, Any], place: Place, old: str, text: str) -> None:
    """Put `text` where `old` begins in a string. Raises `ValueError` when `old` isn't there."""
    within, name = holder(request, place.path[:-1]), place.path[-1]
    said = within[name]
    end = place.at + len(old)
    _expect(isinstance(said, str) and said[place.at : end] == old)
    within[name] = said[: place.at] + text + said[end:]


def restore(within: dict[str, Any], name: Any, before: tuple[Any, ...] | list[Any]) -> None:
    """Give a field its former value, or none: `before` holds one value or nothing."""
    if before:
        within[name] = before[0]
    else:
        del within[name]


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _message(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text.lstrip("\n")}


def _paragraph(text: str) -> str:
    return text.lstrip("\n") + "\n\n"


def _expect(there: bool) -> None:
    if not there:
        raise ValueError("the request is not as the overlays left it")
