"""Clusters of real failures of five models in two domains, and of a coding agent, against their recordings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from atdp.error_class import error_class
from evaluators.cases import Call
from evaluators.diagnosis.clusters import groups
from evaluators.diagnosis.outcomes import Outcome, outcomes_of
from evaluators.diagnosis.symptoms import symptom
from evaluators.intervals import wilson
from evaluators.steps import Step
from evaluators.tasks import cluster, task_key
from tests.evaluators.conftest import calling, make_case
from tests.evaluators.test_real_failures import WRITES, holds
from tests.shared import DATA, REASON

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=REASON)

Run = dict[str, Any]
Error = tuple[str, str, str]
"""Tool, class, and what the tool said."""
CHANGES = WRITES | {"cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_address",
                    "modify_pending_order_items", "modify_pending_order_payment", "modify_user_address",
                    "return_delivered_order_items"}  # fmt: skip


@cache
def runs(domain: str) -> list[Run]:
    """Every model's, each with the actions that were `due`."""
    found = []
    for file in sorted((DATA / f"tau2-{domain}").glob(f"*_{domain}.json")):
        document = json.loads(file.read_text())
        tasks = {t["id"]: (t["evaluation_criteria"] or {}).get("actions") or [] for t in document["tasks"]}
        for run in document["simulations"]:
            checks = run["reward_info"].get("action_checks")
            ended = run["termination_reason"] in ("agent_stop", "user_stop")
            # a run that was judged says itself what was due; one that was cut off has its task's
            due = [c["action"] for c in checks or ()] if checks or ended else tasks[run["task_id"]]
            found.append({**run, "due": [Call(a["name"], a["arguments"]) for a in due]})
    return found


def steps(run: Run) -> Iterator[Step]:
    """The calls of a run with their results."""
    called = {c["id"]: c for m in run["messages"] for c in m.get("tool_calls") or ()}
    for n, m in enumerate(run["messages"]):
        if m["role"] == "tool":
            call, failed, text = called[m["id"]], bool(m.get("error")), str(m["content"])
            kind = error_class(text) if failed else ""
            status = "error" if failed else "ok"
            yield Step("tool_call", call["name"], call["arguments"], status, kind, text, f"{run['id']}-{n}")


def errors(domain: str) -> list[Error]:
    return [(s.name, s.error_class, s.text) for run in runs(domain) for s in steps(run) if s.failed]


def coding_errors() -> list[Error]:
    """Edits that SWE-agent's tools refused, by their command."""
    found = []
    for file in sorted((DATA / "swe-agent-traj").glob("*.traj")):
        for step in json.loads(file.read_text()).get("trajectory", ()):
            if "ERRORS:" in step["observation"]:
                found.append((step["action"].split()[0], error_class(step["observation"]), step["observation"]))
    return found


def clustered(found: list[Error]) -> tuple[float, int]:
    """(purity against tool and class, number of clusters); clusters know what the tools said and nothing else."""
    keys = [task_key(text) for _, _, text in found]
    named = cluster(keys)
    members: dict[str, Counter[tuple[str, str]]] = {}
    for (tool, kind, _), key in zip(found, keys, strict=True):
        members.setdefault(named[key], Counter())[tool, kind] += 1
    return sum(max(c.values()) for c in members.values()) / len(found), len(members)


@pytest.mark.parametrize(("agent", "least"), [("airline", 0.8), ("retail", None), ("swe-agent", None)])
def test_errors_cluster_by_their_words_as_they_do_by_tool_and_class(agent: str, least: float | None) -> None:
    """Fewer than 50 errors are told and not judged: their interval is wider than what would be judged."""
    found = coding_errors() if agent == "swe-agent" else errors(agent)
    purity, number = clustered(found)
    labels = Counter((tool, kind) for tool, kind, _ in found)
    within = wilson(round(purity * len(found)), len(found))
    print(
        f"{agent}: purity {purity:.2f} [{within.low:.2f}, {within.high:.2f}] of {len(found)} errors in {number} "
        f"clusters; {len(labels)} labels, the largest {max(labels.values()) / len(found):.2f}"
    )
    assert found
    if least is not None:
        assert len(found) >= 50 and purity >= least and number <= 2 * len(labels)


def outcomes(domain: str) -> list[Outcome]:
    cases = []
    for run in runs(domain):
        done, demonstration = list(steps(run)), {"role": "assistant", "content": None, "tool_calls": []}
        for call in run["due"]:
            demonstration["tool_calls"] += calling(call.name, **call.arguments)["tool_calls"]
        made = [(s.name, s.arguments) for s in done]
        reward = run["reward_info"]["reward"]
        cases.append(make_case(reward=reward, demonstration=demonstration, calls=made, steps=tuple(done)))
    return outcomes_of(cases, look_ups={s.name for run in runs(domain) for s in steps(run)} - CHANGES)


def at_fault(run: Run, kind: str) -> bool | None:
    """Did the environment find wrong what the symptom says, its tables (`DB`) or the answer? None: it was not asked."""
    parts = run["reward_info"].get("reward_breakdown")
    return parts and parts["COMMUNICATE" if kind == "wrong answer" else "DB"] == 0


@pytest.mark.parametrize(("domain", "judged"), [("airline", True), ("retail", False)])
def test_the_label_of_each_cluster_is_borne_out_by_the_recordings_in_it(domain: str, judged: bool) -> None:
    """By the names of the calls, and by what the environment itself found wrong."""
    told = outcomes(domain)
    run_of = {o.case.event_id: run for o, run in zip(told, runs(domain), strict=True)}
    labels: Counter[str] = Counter()
    named, checked = [], []
    for group in groups(told, (), tolerated=0.1, alpha=0.05):
        labels["several tools" if group.broad else group.symptom.kind if group.real else "chance"] += len(group.members)
        for outcome in group.members:
            run, kind = run_of[outcome.case.event_id], symptom(outcome).kind
            due = [c.name for c in run["due"]]
            named.append(holds(kind, [s.name for s in steps(run) if s.name in CHANGES or s.name in due], due))
            checked.append(at_fault(run, kind))
    asked = [found for found in checked if found is not None]
    print(
        f"{domain}: {len(named)} failures of {len(told)} runs: {dict(labels)}; borne out by names {sum(named)}, "
        f"by the environment {sum(asked)} of {len(asked)}"
    )
    assert len(named) == sum(o.failed for o in told)
    if judged:
        assert len(named) > 50 and sum(named) >= 0.95 * len(named) and sum(asked) >= 0.9 * len(asked)
