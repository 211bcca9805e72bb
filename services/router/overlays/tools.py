"""Tools: the model reads better words about the client's tools, and narrower bounds of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from registry.manifest import ToolOverlay
from services.proxy.dialects.base import ToolPlace
from services.router.overlays import places
from services.router.overlays.draft import Draft, Overlay
from services.router.overlays.narrowing import NotNarrower, narrowed

HINT = "hint"
"""In an argument's patch: words behind the client's own description, which differs from tenant to tenant."""


def apply(draft: Draft, overlays: Iterable[ToolOverlay]) -> None:
    """Change the tools that the client sent; what the client's schema would not accept is refused, and recorded."""
    named: dict[str, ToolPlace] | None = None
    for overlay in overlays:
        if named is None:
            named = draft.dialect.tools(draft.given)
            if not named:
                return  # nothing to change, and nothing that could have been
        place = named.get(overlay.name)
        told = {"tool": overlay.name, "provenance": list(overlay.provenance)}
        if place is None:
            draft.skip("tools", "set", "tools", "the client sent no such tool", **told)
        else:
            _change(draft, overlay, place, told)


def undo(request: dict[str, Any], overlay: Overlay) -> None:
    for field in reversed(overlay["fields"]):
        path = (*overlay["path"], *field["path"])
        places.restore(places.holder(request, path[:-1]), path[-1], field["before"])


def _change(draft: Draft, overlay: ToolOverlay, place: ToolPlace, told: dict[str, Any]) -> None:
    tool: Any = draft.request  # another overlay may have changed it
    for step in place.path:
        tool = tool[step]
    fields = _words(overlay, tool)
    schema = tool.get(place.schema)
    for argument, patch in overlay.arguments.items():
        try:
            fields.append(_argument(argument, patch, tool, place, schema))
        except NotNarrower as refused:
            draft.skip("tools", "set", "tools", str(refused), **told, argument=argument)
    size = sum(_size(field["value"]) - sum(map(_size, field["before"])) for field in fields)
    if not fields:
        return
    if not draft.fits(size):
        draft.skip("tools", "set", "tools", draft.too_large, **told)
        return
    draft.spend(size)
    for field in fields:
        path = (*place.path, *field["path"])
        places.holder(draft.request, path[:-1])[path[-1]] = field["value"]
    says = [field["value"] for field in fields]
    draft.changed("tools", "set", "tools", says, **told, path=list(place.path), fields=fields)


def _words(overlay: ToolOverlay, tool: dict[str, Any]) -> list[dict[str, Any]]:
    before = [tool["description"]] if "description" in tool else []
    said = before[0] if before and isinstance(before[0], str) else ""
    text = said if overlay.description is msgspec.UNSET else overlay.description
    if overlay.hint:
        text = f"{text} {overlay.hint}".lstrip()
    return [{"path": ["description"], "value": text, "before": before}] if text != said else []


def _argument(name: str, patch: dict[str, Any], tool: dict[str, Any], place: ToolPlace, schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or name not in properties:
        raise NotNarrower("the client's schema has no such argument")
    before = properties[name]
    bounds = {keyword: value for keyword, value in patch.items() if keyword != HINT}
    value = narrowed(before, bounds, strict=bool(tool.get("strict")))
    if isinstance(hint := patch.get(HINT), str):
        said = value.get("description")
        value["description"] = f"{said if isinstance(said, str) else ''} {hint}".lstrip()
    try:
        _size([before, value])
    except TypeError as error:
        raise NotNarrower(f"the schema can't be written: {error}") from error
    return {"path": [place.schema, "properties", name], "value": value, "before": [before]}


def _size(value: Any) -> int:
    return len(orjson.dumps(value))
