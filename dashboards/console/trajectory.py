"""A trajectory as a person reads it: step by step, what the client sent and what the model got, signals as they came.

Only the stored view is shown: what was redacted stays redacted, what is sealed is named and not opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dashboards import steps
from dashboards.steps import Passage, Signal, Step
from services.proxy.reader import StoreReader, TrajectoryRow

_LONGEST = 20_000
"""Characters of one text that are shown; the command line shows all."""
_PAGE = 100
"""Steps on one page."""


class View(NamedTuple):
    tenant: str
    trajectory_id: str
    session_id: str
    agent: str
    opened_at: str
    closed: str
    facts: list[tuple[str, str]]
    steps: list[Step]
    """Of this page."""
    first: int
    """The number of its first one, from 1."""
    of: int
    """Steps in the trajectory."""
    signals: list[Signal]
    """About the trajectory as a whole."""
    problems: list[str]
    """Of its hash chain; empty when nobody altered it."""

    @property
    def previous(self) -> int:
        """Where the page before begins."""
        return max(1, self.first - _PAGE)

    @property
    def next(self) -> int | None:
        """Where the page after begins; None on the last."""
        after = self.first + len(self.steps)
        return after if after <= self.of else None


def view(reader: StoreReader, tenant: str, trajectory_id: str, step: int = 1, at: str = "") -> View | None:
    """The steps from number `step` on, or the page that the record `at` is on; None when there is no such trajectory.

    Only what is on the page is loaded, and of a model call only what is new in it: the history is on the steps before.
    """
    records = reader.records(tenant, trajectory_id)
    if not records:
        return None
    header = records[0]
    events = [r for r in records if r["record"] == "event"]
    marks: dict[str | None, list[dict[str, Any]]] = {}
    for record in records:
        if record["record"] == "annotation":
            for target in record.get("targets") or [{}]:
                marks.setdefault(target.get("event_id"), []).append(record)
    numbers = {event["id"]: number for number, event in enumerate(events, 1)}
    if at:
        of = next((target for target, found in marks.items() if any(r["id"] == at for r in found)), None)
        number = numbers.get(at) or numbers.get(of or "") or 1
        step = number - (number - 1) % _PAGE
    first = min(max(1, step), max(1, len(events)))
    shown = events[first - 1 : first - 1 + _PAGE]

    def signals(targets: Iterable[str | None]) -> list[Signal]:
        return [
            _short_signal(steps.signal(reader.resolve(tenant, r))) for target in targets for r in marks.get(target, ())
        ]

    whole = (target for target in marks if target not in numbers)
    return View(
        tenant=tenant,
        trajectory_id=trajectory_id,
        session_id=header.get("session_id") or "",
        agent=(header.get("agent") or {}).get("name", ""),
        opened_at=header["time"],
        closed=next((r.closed or "open" for r in _rows(reader, tenant, trajectory_id)), ""),
        facts=_about(header),
        steps=[_short(steps.step(reader.resolve(tenant, steps.new_in(e)), signals([e["id"]]))) for e in shown],
        first=first,
        of=len(events),
        signals=signals(whole),
        problems=reader.verify(tenant, trajectory_id),
    )


def _short(step: Step) -> Step:
    return step._replace(sent=_cut(step.sent), got=_cut(step.got), out=_cut(step.out))


def _cut(passages: list[Passage]) -> list[Passage]:
    return [passage._replace(text=_shortened(passage.text)) for passage in passages]


def _short_signal(signal: Signal) -> Signal:
    return signal._replace(text=_shortened(signal.text))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"


def _about(header: dict[str, Any]) -> list[tuple[str, str]]:
    gov = header.get("gov") or {}
    eligibility = ", ".join(f"{purpose} {leave}" for purpose, leave in (gov.get("eligibility") or {}).items())
    facts = [
        ("classification", str(gov.get("classification", ""))),
        ("redaction", str((gov.get("redaction") or {}).get("state", "none"))),
        ("eligible", eligibility),
        ("retention", str((gov.get("retention") or {}).get("policy", "not limited"))),
    ]
    return [fact for fact in facts if fact[1]]


def _rows(reader: StoreReader, tenant: str, trajectory_id: str) -> list[TrajectoryRow]:
    row = reader.trajectory(tenant, trajectory_id)
    return [row] if row is not None else []
