"""A request on its way through the surfaces, and the record of what each did to it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import orjson

from atdp.canonical import digest_bytes
from services.proxy.dialects import Dialect
from services.proxy.dialects.base import Path, Place
from services.router.overlays import places
from services.router.overlays.words import words

Overlay = dict[str, Any]
"""One change: `surface`, `op`, `target`, what it says and where it stands, and the digest of what it says: the same in
every request. One that was not made has `skipped` instead: the reason."""


class Draft:
    """The client's request, copied only where it is changed."""

    too_large = "larger than what may be added to a request"

    def __init__(
        self, given: dict[str, Any], tenant: str, dialect: Dialect, *, max_items: int, max_bytes: int, max_total: int
    ) -> None:
        self.given = given
        self.request = dict(given)
        self.tenant = tenant
        self.dialect = dialect
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._left = max_total
        self._overlays: list[Overlay] = []
        self._changed = False

    @cached_property
    def said(self) -> set[str]:
        """The words of the user's last message, stop words aside."""
        return words(self.dialect.last_user_text(self.given))

    def append(self, surface: str, text: str, *, op: str = "append", always: bool = False, **told: Any) -> None:
        """Put text behind the system instructions."""
        if not always and not self.fits(len(text.encode())):
            self.skip(surface, op, "system", self.too_large, **told)
            return
        self._left -= len(text.encode())
        place = self.dialect.system_end(self.request)
        if place is None:
            self.skip(surface, op, "system", "the request has no place for instructions", **told)
            return
        places.put(self.request, place, text)
        self.changed(surface, op, "system", text, text=text, place=_written(place), **told)

    def splice(self, surface: str, op: str, path: Path, at: int, old: str, text: str, **told: Any) -> None:
        """Put `text` where `old` stands in the string at `path`."""
        self._left -= len(text.encode()) - len(old.encode())
        place = Place(path, "text", at)
        places.splice(self.request, place, old, text)
        self.changed(surface, op, "system", [old, text], old=old, text=text, place=_written(place), **told)

    def fits(self, size: int) -> bool:
        """May this many bytes still be added?"""
        return size <= self._left

    def spend(self, size: int) -> None:
        self._left -= size

    def changed(self, surface: str, op: str, target: str, says: Any, **content: Any) -> None:
        """Record what was done; `says` is the version's part in it, whatever the client's request is."""
        fingerprint = digest_bytes(orjson.dumps([surface, op, target, says], option=orjson.OPT_SORT_KEYS))
        self._changed = True
        self._overlays.append({"surface": surface, "op": op, "target": target, **content, "digest": fingerprint})

    def skip(self, surface: str, op: str, target: str, why: str, **told: Any) -> None:
        """Record what was not done, and why."""
        self._overlays.append({"surface": surface, "op": op, "target": target, **told, "skipped": why})

    def result(self) -> tuple[dict[str, Any], list[Overlay]]:
        return (self.request if self._changed else self.given), self._overlays


def _written(place: Place) -> dict[str, Any]:
    written: dict[str, Any] = {"path": list(place.path), "form": place.form}
    if place.form == "text":
        written["at"] = place.at
    if place.form == "field":
        written["before"] = list(place.before)
    return written
