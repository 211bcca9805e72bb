"""The ids that answers told a tenant lately: known before the log can be asked for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

_REMEMBERED = 16384


class KnownIds:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, tenant: str, ids: Iterable[str]) -> None:
        """Remember what is about to be stored and told."""
        for id in ids:
            self._known[tenant, id] = None
            self._known.move_to_end((tenant, id))
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def knows(self, tenant: str, id: str) -> bool:
        return (tenant, id) in self._known
