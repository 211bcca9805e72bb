"""Taking a version's changes back out of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.proxy.dialects.base import Place
from services.router.overlays import params, places, tools
from services.router.overlays.draft import Overlay


class NotApplied(ValueError):
    """The request is not one that these overlays were applied to."""


def undo(request: dict[str, Any], overlays: Sequence[Overlay]) -> dict[str, Any]:
    """What the client sent, to the byte: keys in their order, absent ones absent.

    `request` is left as it is. Raises `NotApplied` when it does not hold what the overlays say they put there.
    """
    result = dict(request)
    try:
        for overlay in reversed(overlays):
            if "skipped" not in overlay:
                _undo_one(result, overlay)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise NotApplied(f"not the request of these overlays: {error}") from error
    return result


def _undo_one(request: dict[str, Any], overlay: Overlay) -> None:
    if overlay["target"] == "params":
        params.undo(request, overlay)
    elif overlay["target"] == "tools":
        tools.undo(request, overlay)
    else:
        told = overlay["place"]
        place = Place(tuple(told["path"]), told["form"], told.get("at", 0), tuple(told.get("before", ())))
        if "old" in overlay:
            places.splice(request, place, overlay["text"], overlay["old"])
        else:
            places.take(request, place, overlay["text"])
