"""Clusters of real failures, held against what the recordings themselves say went wrong."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest

from atdp.error_class import error_class
from evaluators.cases import Call
from evaluators.diagnosis.outcomes import outcomes_of
from evaluators.diagnosis.symptoms import symptom
from evaluators.tasks import cluster, task_key
from tests.evaluators.conftest import make_case
from tests.shared import DATA, REASON

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=REASON)
WRITES = frozenset({"book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages",
                    "update_reservation_flights", "update_reservation_passengers"})  # fmt: skip


@cache
def runs():
    return json.loads((DATA / "tau1-airline" / "gpt-4o-airline.json").read_text())


def calls_of(run) -> list[Call]:
    made = [c["function"] for m in run["traj"] if m["role"] == "assistant" for c in m.get("tool_calls") or []]
    return [Call(f["name"], json.loads(f["arguments"])) for f in made]


def failed_steps():
    """(label, text of the error) of every call that the airline's tools rejected."""
    found = []
    for run in runs():
        for m in run["traj"]:
            text = str(m.get("content") or "")
            if m["role"] == "tool" and text.startswith("Error"):
                found.append((m["name"], error_class(text), text))
    return found


def test_errors_cluster_by_their_words_as_they_do_by_tool_and_class():
    """Clusters know the text alone; the label is the recorded tool and error class."""
    steps = failed_steps()
    keys = [task_key(text) for _, _, text in steps]
    named = cluster(keys)
    groups: dict[str, Counter] = {}
    for (tool, kind, _), key in zip(steps, keys, strict=True):
        groups.setdefault(named[key], Counter())[tool, kind] += 1
    purity = sum(max(c.values()) for c in groups.values()) / len(steps)
    labels = len({(tool, kind) for tool, kind, _ in steps})
    print(f"purity {purity:.3f} of {len(steps)} errors in {len(groups)} clusters, {labels} labels")
    assert len(steps) > 60 and purity >= 0.85 and len(groups) < len(steps) / 3


def outcomes():
    """Each run as one outcome: its writes and transfers, and those the task is defined by."""
    cases = []
    for run in runs():
        done = calls_of(run)
        due = tuple(Call(a["name"], a["kwargs"]) for a in run["info"]["task"]["actions"])
        shown = [{"id": "c", "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in due]
        demonstration = {"role": "assistant", "content": None, "tool_calls": shown}
        calls = [(c.name, c.arguments) for c in done]
        cases.append(make_case(reward=run["reward"], demonstration=demonstration, calls=calls))
    return outcomes_of(cases, look_ups={c.name for r in runs() for c in calls_of(r)} - WRITES)


def holds(kind: str, done: list[str], due: list[str]) -> bool:
    """Does the recorded transcript bear the label out? By counting tools' names, nothing else."""
    made, wanted = Counter(done), Counter(due)
    match kind:
        case "no call":
            return not made and bool(wanted)
        case "missing steps":
            return bool(made) and bool(wanted - made) and not made - wanted
        case "needless call":
            return bool(made - wanted) and not wanted - made
        case "wrong tool":
            return bool(made - wanted) and bool(wanted - made)
        case _:
            return made == wanted


def test_the_cause_of_each_of_116_failures_is_borne_out_by_its_recording():
    failures = [(o, run) for o, run in zip(outcomes(), runs(), strict=True) if o.failed]
    kinds = [symptom(o).kind for o, _ in failures]
    right = 0
    for kind, (_, run) in zip(kinds, failures, strict=True):
        due = [a["name"] for a in run["info"]["task"]["actions"]]
        done = [c.name for c in calls_of(run) if c.name in WRITES or c.name in due]
        right += holds(kind, done, due)
    print(f"{dict(Counter(kinds))}: {right} of {len(failures)} borne out")
    assert len(failures) == 116 and right >= 0.95 * 116
    assert kinds.count("unexplained") == 0
