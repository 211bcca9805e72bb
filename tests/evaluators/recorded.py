"""Public trajectories as the records a log would have, without a log: by trajectory, in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from atdp.convert import Late, detect
from atdp.records import AnnotationDraft, EventDraft, TrajectoryDraft

Record = dict[str, Any]


def read(*files: Path) -> dict[str, list[Record]]:
    """The trajectories of these files with the annotations that any of them has about them."""
    found: dict[str, list[Record]] = defaultdict(list)
    owner: dict[str, str] = {}
    late: list[Late] = []
    for file in files:
        data = file.read_bytes()
        for item in detect(data.splitlines(keepends=True)).read(data).records:
            if isinstance(item, Late):
                late.append(item)
            elif isinstance(item, TrajectoryDraft | EventDraft | AnnotationDraft):
                found[item.trajectory_id].append(msgspec.to_builtins(item))
                if isinstance(item, EventDraft):
                    owner[item.id] = item.trajectory_id
    for each in late:
        id = each.target if each.target in found else owner.get(each.target, each.or_trajectory or "")
        if id in found:
            target = {"trajectory_id": id, **({"event_id": each.target} if each.target in owner else {})}
            found[id].append({**msgspec.to_builtins(each.annotation), "trajectory_id": id, "targets": [target]})
    return dict(found)


def annotations(records: list[Record]) -> list[Record]:
    return [r for r in records if r["record"] == "annotation"]


def events(records: list[Record]) -> list[Record]:
    return [r for r in records if r["record"] == "event"]
