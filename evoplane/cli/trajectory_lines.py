"""A trajectory on a terminal: who did what, what came of it, what it took, and what was said about it.

The texts are other people's: control characters are shown, not sent to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dashboards import steps
from dashboards.steps import Passage

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Also what turns the direction of writing round, and halves of characters: no terminal gets these."""
_BEYOND_THE_STEP = " " * 6
_SHOWN = frozenset({"took", "tokens", "finish", "because of"})
"""Of a step's facts."""
_ACTORS = {"llm_call": "agent", "user_message": "user"}
"""Who acts where the record names nobody."""


class Line(NamedTuple):
    text: str
    style: str = ""


def lines(records: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """The records of one chain, resolved or as stored, in its order."""
    numbers = {record["id"]: record["seq"] for record in records if record["record"] == "event"}
    for record in records:
        match record["record"]:
            case "trajectory":
                yield from _header(record)
            case "annotation":
                yield from _signal(dict(record), numbers)
            case _:
                yield from _step(dict(record))


def _header(record: Mapping[str, Any]) -> Iterator[Line]:
    session = f"  session {record['session_id']}" if record.get("session_id") else ""
    who = f"agent {record['agent']['name']}  tenant {record['gov']['tenant']}"
    yield Line(_one_line(f"{record['trajectory_id']}  {who}{session}  opened {_clock(record['time'])}"), "bold")


def _step(record: dict[str, Any]) -> Iterator[Line]:
    step = steps.step(record, [])
    version = f"version {step.version}" + (f" ({step.role})" if step.role else "") if step.version else ""
    small = [f"{name} {text}" for name, text in step.facts if name in _SHOWN]
    named = f"{step.kind} {step.title.partition(' · ')[2]}".strip()
    told = "  ".join(filter(None, [named, step.actor or _ACTORS.get(step.kind), step.status, version, *small]))
    yield Line(_one_line(f"{record['seq']:>4}  {told}  {_clock(step.time)}  {step.id}"), "cyan")
    for passage in (*step.sent, *step.got, *step.out):
        yield _passage(passage)


def _passage(passage: Passage) -> Line:
    mark = "+ " if passage.added else "- " if passage.removed else ""
    return Line(_BEYOND_THE_STEP + _indented(f"{mark}{passage.who}: {passage.text}"))


def _signal(record: dict[str, Any], numbers: Mapping[str, int]) -> Iterator[Line]:
    signal = steps.signal(record)
    about = [numbers.get(target.get("event_id")) for target in record.get("targets") or []]
    named = ", ".join(str(number) for number in about if number is not None)
    where = f"about step {named}" if named else "about the whole"
    value = f" = {signal.value}" if signal.value else ""
    sure = f", confidence {signal.confidence}" if signal.confidence else ""
    kind = f"{signal.kind} " if signal.kind != signal.name else ""
    told = f"{kind}{signal.name}{value}  {where}, by {signal.source}{sure}  {_clock(signal.time)}"
    yield Line(_one_line(f"      {told}"), "yellow")
    if signal.text:
        yield Line(_BEYOND_THE_STEP + _indented(signal.text))


def _clock(time: str) -> str:
    return time[:19].replace("T", " ")


def _indented(text: str) -> str:
    return _plain(text).replace("\n", f"\n{_BEYOND_THE_STEP}  ")


def _one_line(text: str) -> str:
    """What a name holds must not look like a step of its own."""
    return _plain(text).replace("\n", "\\x0a")


def _plain(text: str) -> str:
    return _CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
