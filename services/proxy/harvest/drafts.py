"""Candidate signals as annotations: what was seen, how sure one can be, on what evidence.

A candidate is never optimised directly (`optimizable` is false) until somebody resolves it. Its id
comes from what it is about, so that finding it again is harmless. It quotes nobody: the words stay in
the events it names.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET

from atdp import clock
from atdp.ids import derived_id
from atdp.records import AnnotationDraft, EventDraft, Scale, Source, Target

VERSION = "1"
"""Of the rules: another version's findings are other annotations."""

SIGNED = Scale(min=-1, max=1, higher_is_better=True)
SHARE = Scale(min=0, max=1, higher_is_better=True)


def candidate(
    event: EventDraft,
    name: str,
    label: str,
    confidence: float,
    *,
    value: float | None = None,
    scale: Scale | None = None,
    kind: Literal["reward", "label"] = "reward",
    source: Literal["implicit", "code", "environment"] = "implicit",
    evidence: list[str] | None = None,
    **ext: Any,
) -> AnnotationDraft:
    """A finding about an event. `evidence` are the events that show it."""
    shown = evidence or []
    return AnnotationDraft(
        atdp="1.0",
        id=derived_id("an", event.trajectory_id, event.id, "harvest", VERSION, name, *shown),
        trajectory_id=event.trajectory_id,
        kind=kind,
        name=name,
        targets=[Target(trajectory_id=event.trajectory_id, event_id=event.id)],
        source=Source(kind=source, id="harvest", version=VERSION),
        time=clock.now(),
        value=UNSET if value is None else value,
        label=label,
        scale=UNSET if scale is None else scale,
        confidence=confidence,
        optimizable=False,
        evidence=shown or UNSET,
        ext=ext or UNSET,
    )
