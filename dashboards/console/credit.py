"""What a trajectory's signals came to, and what led to the steps they judge: as `evoplane rewards credit` shows it."""

from __future__ import annotations

from typing import Any, NamedTuple

from evaluators.credit import Contribution, contributions
from evaluators.rewards import Judged, Signal, resolve, rule_of
from evaluators.rewards.links import links
from evoplane.settings import Settings
from services.proxy.reader import StoreReader

_MOST = 20
"""Steps whose credit is worked out for one page, the last ones; the command line does any."""
_MOST_CALLS = 300
"""Model calls of a trajectory that is worked out for a page: each one's history is put together from all before it."""


class JudgedStep(NamedTuple):
    """A step that has signals or a reward."""

    id: str
    number: int
    """As the trajectory's page counts, from 1."""
    kind: str
    judged: Judged | None
    """Its reward; its trajectory's where the rule says so."""
    own: bool
    """Is the reward its own, not its trajectory's?"""
    signals: tuple[Signal, ...]
    """About it, oldest first; `ignored` says why one didn't count."""
    credit: list[Contribution]
    """What led to it, largest share first; empty where it wasn't worked out."""


class CreditView(NamedTuple):
    rule: str
    """Digest of the agent's rule."""
    trajectory: Judged | None
    signals: tuple[Signal, ...]
    """About the trajectory as a whole."""
    steps: list[JudgedStep]
    too_long: bool = False
    """Was it not worked out, because the trajectory is too long for a page?"""


def view(config: Settings, reader: StoreReader, tenant: str, trajectory_id: str) -> CreditView | None:
    """None when this tenant has no such trajectory."""
    stored = reader.records(tenant, trajectory_id)
    if not stored:
        return None
    if sum(r.get("kind") == "llm_call" for r in stored) > _MOST_CALLS:
        return CreditView("", None, (), [], too_long=True)
    records = reader.resolve_all(tenant, stored)
    events = [r for r in records if r["record"] == "event"]
    annotations = [r for r in records if r["record"] == "annotation"]
    agent = next(((r.get("agent") or {}).get("name", "") for r in records if r["record"] == "trajectory"), "")
    found = resolve(annotations, rule_of(config, agent), events=events)
    known = {event["id"] for event in events}
    steps = []
    for number, event in enumerate(events, 1):
        id = event["id"]
        signals = tuple(s for s in found.signals if id in s.events)
        if signals or id in found.steps:
            steps.append(JudgedStep(id, number, event["kind"], found.of(id), id in found.steps, signals, []))
    if not steps and found.trajectory is not None:
        steps = _last_decision(events, found.of)
    tied = links(r for r in stored if r["record"] == "event")
    late = {step.id for step in steps[-_MOST:]}
    return CreditView(
        rule=found.rule,
        trajectory=found.trajectory,
        signals=tuple(s for s in found.signals if known.isdisjoint(s.events)),
        steps=[
            step._replace(credit=contributions(events, step.id, annotations, known_links=tied))
            if step.id in late
            else step
            for step in steps
        ],
    )


def _last_decision(events: list[dict[str, Any]], of: Any) -> list[JudgedStep]:
    """Of a trajectory that is judged only as a whole, what it ended in."""
    calls = [(number, event) for number, event in enumerate(events, 1) if event["kind"] == "llm_call"]
    return [JudgedStep(e["id"], number, e["kind"], of(e["id"]), False, (), []) for number, e in calls[-1:]]
