"""English, as far as the customers of the demo speak it: what a request asks for, whoever reads it.

The customers' sentences are `examples.support.scenario`'s; understanding them is what the simulated model and a
colleague at the help desk have in common. Nothing here knows of faults.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from examples.support import scenario

_SLOTS = {"o": r"(?P<o>[A-H]\d{3,5})", "c": r"(?P<c>[A-Z][a-z]+)", "p": r"(?P<p>[a-z][a-z ]*?)"}

MEANINGS: dict[str, frozenset[str]] = {
    "track_order": frozenset(["where", "parcel", "track", "status", "shipped", "arrive", "tracking"]),
    "cancel_order": frozenset(["stop", "cancel", "call", "off"]),
    "start_return": frozenset(["return", "send", "back", "goods", "take"]),
    "change_address": frozenset(["address", "deliver", "elsewhere", "city", "move", "destination"]),
}
"""Words by which a tool's description says that it is for this."""


class Meaning(msgspec.Struct, frozen=True):
    """What a customer wants."""

    tool: str = ""
    reason: str = ""
    order: str = ""
    city: str = ""
    topic: str = ""


@cache
def _sentences() -> list[tuple[re.Pattern[str], str, str]]:
    """(pattern, tool or "", reason or topic) of every sentence a customer may say."""
    found = []
    for kind, templates in scenario._ACTION_TEMPLATES.items():
        tool, _, reason = kind.partition(":")
        found += [(_pattern(t), tool, reason) for split in templates.values() for t in split]
    for topic, templates in scenario._POLICY_TEMPLATES.items():
        found += [(_pattern(t), "", topic) for split in templates.values() for t in split]
    return found


def understood(text: str) -> Meaning:
    """What the words ask for; an empty meaning for what is not a customer's sentence."""
    for pattern, tool, detail in _sentences():
        match = pattern.fullmatch(text)
        if match is None:
            continue
        if not tool:
            return Meaning(topic=detail)
        said = match.groupdict()
        return Meaning(tool=tool, reason=detail, order=said.get("o") or "", city=said.get("c") or "")
    return Meaning()


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{([ocp])\}", template)
    return re.compile("".join(_SLOTS[p] if n % 2 else re.escape(p) for n, p in enumerate(parts)))
