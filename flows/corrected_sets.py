"""Training sets of what people put right: what they showed against what the agent did, and what they said as a hint.

A pair has one prompt, as captured; the demonstrated answer is written as the served model would write it
(`training_set.Writer`), the other one is the agent's own, as sampled. A hint stands behind the user's last words, in
the prompt of the teacher alone: the policy, told what the user said afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evaluators import corrections, dataset
from evaluators.cases import Case

if TYPE_CHECKING:
    from flows.training_set import Writer

Kind = Literal["corrected", "hints"]


def build(
    cases: Sequence[Case], kind: Kind, split: dataset.Split, limit: int, writer: Writer, output: Path
) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` into `output`, which is there and empty; gives the report."""
    dropped: Counter[str] = Counter()
    if kind == "corrected":
        chosen = dataset.select(cases, split, corrections.established(cases), limit)
        dropped.update(chosen.dropped)
        train, heldout = dataset.shown_otherwise(chosen.train), dataset.shown_otherwise(chosen.heldout)
    else:
        train, heldout = dataset.hinted(cases, split)[-limit:], []
    used: dict[str, list[Case]] = {}
    for name, members in (("train", train), ("heldout", heldout)):
        made = [(case, rows) for case in members if (rows := _rows(case, kind, writer, dropped))]
        lines = [msgspec.json.encode(row) + b"\n" for _, rows in made for row in rows]
        (output / f"{name}.jsonl").write_bytes(b"".join(lines))
        used[name] = [case for case, _ in made]
    return {
        "kind": kind,
        "train": len(used["train"]),
        "heldout": len(used["heldout"]),
        "dropped": dict(sorted(dropped.items())),
        "heldout_tasks": split.heldout_tasks(cases),
        "tenants": sorted({c.tenant for c in used["train"]}),
        "eligibility": [
            {"tenant": c.tenant, "trajectory": c.trajectory_id, "train": "allow"}
            for c in [*used["train"], *used["heldout"]]
        ],
    }


def _rows(case: Case, kind: Kind, writer: Writer, dropped: Counter[str]) -> list[dict[str, Any]]:
    done = {"prompt_token_ids": case.prompt_token_ids, "completion_token_ids": case.completion_token_ids}
    if kind == "corrected":
        shown = {"prompt_token_ids": case.prompt_token_ids, "completion_token_ids": writer.completion_ids(case)}
        pair = "/".join(case.key)
        return [shown | {"pair": pair, "role": "chosen"}, done | {"pair": pair, "role": "rejected"}]
    told = writer.hinted_ids(case, case.corrections[-1].text)
    if told is None:
        dropped["its prompt does not end as the template ends one"] += 1
        return []
    return [done | {"hint_prompt_token_ids": told}]
