"""What a translation could not carry."""

from __future__ import annotations

from typing import Any

_NOTHING: tuple[Any, ...] = (None, [], {}, "")


class Notes:
    """Each thing is named once, in the order it was met."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, name: str) -> None:
        if name not in self.dropped:
            self.dropped.append(name)

    def rest(self, where: str, given: dict[str, Any], *known: str) -> None:
        """Name the fields of an object that are not known and say something."""
        for field, value in given.items():
            if field not in known and value not in _NOTHING:
                self.drop(f"{where}.{field}" if where else field)
