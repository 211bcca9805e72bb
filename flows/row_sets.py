"""Training sets of captured turns: rejection-sampled rows, groups with rewards, preference pairs.

From closed, complete, eligible trajectories of the tenants that the set may hold. A trajectory is worth what the
agent's declared rule says of the whole of it, and where that says nothing, of its last decision. It counts as closed
when the log says so or when its outcome has been told. Whole tasks are held out, never rows: those of the snapshot's
split (`evaluators.dataset`), a trajectory's task being its first request. What shares an entity with a held-out task
is dropped. Every drop is counted by its reason.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from evaluators import dataset
from evaluators.cases import Case, Key
from flows import rows
from flows.snapshot import Entry

Kind = Literal["rft", "groups", "preferences"]

_SUCCESS = 0.5
_SAME_TEMPERATURE = 1e-6


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the set is to hold."""

    kind: Kind
    tenants: list[str] | None = None
    """Whose trajectories may be in it; None is everybody's."""
    versions: list[str] = []
    """Names of the agent's weights in the order in which they came to serve."""
    temperature: float = 1.0
    """Groups and pairs hold what was sampled at this temperature only: log-probabilities of others do not compare."""
    limit: int = 10_000


class _Attempt(msgspec.Struct):
    case: Case
    reward: float
    group: str
    row: dict[str, Any]


def build(entries: Iterable[Entry], wanted: Wanted, split: dataset.Split, output: Path) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` into `output`; gives the report."""
    dropped: Counter[str] = Counter()
    shape: Counter[str] = Counter()
    proof: list[dict[str, Any]] = []
    kept: list[tuple[Entry, rows.Built]] = []
    for entry in entries:
        if (reason := refused(entry, wanted)) is not None:
            dropped[reason] += 1
            continue
        built = rows.build(entry.records)
        dropped.update(built.dropped)
        shape.update(merged=built.merged, branches=built.branches, unmatched=built.unmatched)
        shape["turns"] += sum(len(row.events) for row in built.rows) + sum(built.dropped.values())
        if built.dropped and wanted.kind != "rft":
            dropped["incomplete trajectory"] += len(built.rows)  # a reward of turns that are not all there misleads
            continue
        kept.append((entry, built))
        proof.append(_proof(entry))
    attempts = list(_attempts(kept, wanted, dropped))
    train = [a for a in attempts if not split.is_held_out(a.case)]
    heldout = [a for a in attempts if split.is_held_out(a.case)]
    clean = [a for a in train if not a.case.entities & split.heldout_entities]
    dropped["shares an entity with a held-out task"] += len(train) - len(clean)
    for name, chosen in (("train", clean), ("heldout", heldout)):
        lines = _chosen(chosen, wanted, dropped if name == "train" else Counter())
        (output / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        shape[name] = len(lines)
    used = shape["turns"] or 1
    lost = sum(dropped[reason] for reason in dropped if reason.startswith(("its ", "no captured")))
    return {
        "kind": wanted.kind,
        "train": shape["train"],
        "heldout": shape["heldout"],
        "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
        "turns": {name: shape[name] for name in ("turns", "merged", "branches", "unmatched")},
        "dropped_turn_share": round(lost / used, 4),
        "heldout_tasks": split.heldout_tasks(a.case for a in attempts),
        "tenants": sorted({p["tenant"] for p in proof}),
        "versions": wanted.versions,
        "eligibility": proof,
    }


def refused(entry: Entry, wanted: Wanted) -> str | None:
    """Why this trajectory must not be in the set, if it mustn't."""
    if wanted.tenants is not None and entry.tenant not in wanted.tenants:
        return "another tenant's"
    if not entry.cases:
        return "no decision in it"
    if not all(case.trainable for case in entry.cases):
        return "not eligible for training"
    if entry.reward is None:
        return "no reward"
    if not entry.closed and not entry.cases[-1].judged_at:
        return "still open"
    if any(case.purpose != "serve" or case.role in ("shadow", "pinned") for case in entry.cases):
        return "not served to users"
    return None


def _proof(entry: Entry) -> dict[str, Any]:
    """What says that this trajectory may be trained on."""
    governance = (entry.records[0].get("gov") or {}).get("eligibility") or {}
    return {
        "tenant": entry.tenant,
        "trajectory": entry.cases[0].trajectory_id,
        "train": governance.get("train"),
        "head": entry.records[-1].get("hash"),
    }


def _attempts(kept: Sequence[tuple[Entry, rows.Built]], wanted: Wanted, dropped: Counter[str]) -> Iterable[_Attempt]:
    ordinals = rows.ordinals(wanted.versions)
    for entry, built in kept:
        case, reward = entry.cases[0], entry.reward
        assert reward is not None, "refused above"
        group = rows.group_of(entry.tenant, built.rows[0]) if built.rows else ""
        for turn, row in enumerate(built.rows):
            compared = wanted.kind != "rft"
            if compared and any(abs(t - wanted.temperature) > _SAME_TEMPERATURE for t in row.temperatures):
                dropped["sampled at another temperature"] += 1
                continue
            more: dict[str, str | int] = {"trajectory": "/".join(case.trajectory), "turn": turn}
            if wanted.kind == "groups":
                more["group"] = group
            made = rows.encoded(row, ordinals, reward=reward, **more)
            if made is None:
                dropped["given by weights that are not this agent's"] += 1
                continue
            yield _Attempt(case, reward, group, made)


def _chosen(attempts: Sequence[_Attempt], wanted: Wanted, dropped: Counter[str]) -> list[dict[str, Any]]:
    if wanted.kind == "rft":
        return _successes(attempts, wanted, dropped)
    rewards: dict[str, dict[Key, float]] = defaultdict(dict)
    for attempt in attempts:
        rewards[attempt.group][attempt.case.trajectory] = attempt.reward
    kept, lost = rows.contrasting({group: list(by.values()) for group, by in rewards.items()})
    dropped.update(lost)
    chosen = [a for a in attempts if a.group in kept]
    if wanted.kind == "preferences":
        return rows.pairs((a.group, a.reward, a.row) for a in chosen)
    return [a.row for a in chosen]


def _successes(attempts: Sequence[_Attempt], wanted: Wanted, dropped: Counter[str]) -> list[dict[str, Any]]:
    seen: set[str] = set()
    out: list[dict[str, Any]] = []
    for attempt in attempts:
        if attempt.reward <= _SUCCESS:
            dropped["not a success"] += 1
            continue
        key = json.dumps([attempt.row["prompt_token_ids"], attempt.row["completion_token_ids"]])
        if key in seen:
            dropped["the same row twice"] += 1
        elif len(out) >= wanted.limit:
            dropped["beyond the size limit"] += 1
        else:
            seen.add(key)
            out.append(attempt.row)
    return out
