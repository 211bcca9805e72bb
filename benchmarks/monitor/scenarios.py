"""The faults, each with many worlds that have it, and which surface is right for it.

A scenario says how a world is, not what would mend it: `right` is used to score what was chosen, and by nobody else.
Each seed draws another world: another fact, another pair of tools, another wording, other rates.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.monitor.desk import BackOffice, Judge
from benchmarks.monitor.model import Abilities
from benchmarks.monitor.world import Phase, World, tools_with
from examples.support.scenario import CHANGED_TOPIC, FACTS_AT_START, facts_now
from registry.manifest import Guardrail


@dataclass(frozen=True)
class Scenario:
    name: str
    right: str
    world: Callable[[random.Random], World]
    faulty: bool = True
    """Is there anything to mend?"""


def _missing_fact(rng: random.Random) -> World:
    """The returns window changed, or was never written down."""
    truth = facts_now(changed=True)
    known = {tenant: dict(sheet) for tenant, sheet in FACTS_AT_START.items()}
    if rng.random() < 0.5:
        for sheet in known.values():
            del sheet[CHANGED_TOPIC]
    return World((Phase(360, rng.uniform(0.45, 0.6)),), facts=truth, remembered=known)


def _misrouted_tool(rng: random.Random) -> World:
    """One tool's description promises what another does."""
    wrong = rng.choice(
        [
            {"cancel_order": "stop an order, or take goods back and return them", "start_return": "handle an item"},
            {
                "change_address": "where a parcel is: its status, address and delivery",
                "track_order": "look at a record",
            },
            {"start_return": "send goods back, or cancel and stop an order", "cancel_order": "close a case"},
        ]
    )
    return World((Phase(360, rng.uniform(0.2, 0.4)),), tools=tools_with(wrong))


def _malformed_arguments(rng: random.Random) -> World:
    """The tool takes values of a form that its schema doesn't tell."""
    if rng.random() < 0.5:
        return World((Phase(360, 0.3),), tools=tools_with(without_enum="reason"))
    return World((Phase(360, rng.uniform(0.3, 0.5)),), office=BackOffice(order_form=rng.choice(["ORD-", "NW-"])))


def _missing_procedure(rng: random.Random) -> World:
    """A step has to come first, and the agent seldom thinks of it."""
    tool, first = rng.choice(
        [("cancel_order", "track_order"), ("start_return", "track_order"), ("change_address", "track_order")]
    )
    return World((Phase(360, rng.uniform(0.2, 0.4)),), office=BackOffice(procedures={tool: (first, tool)}))


def _strict_wording(rng: random.Random) -> World:
    """A rule that was meant for the few forbids what most customers rightly want."""
    wording = rng.choice(
        [
            "Never cancel or stop an order without the approval of a supervisor.",
            "You must not take goods back or start a return without the approval of a supervisor.",
            "Do not change the delivery address of an order, whoever asks.",
        ]
    )
    phases = (Phase(360, rng.uniform(0.2, 0.4)),)
    if rng.random() < 0.5:
        return World(phases, rule=wording)
    return World(phases, guardrails=(Guardrail(id="g1", text=wording),))


def _broad_inability(rng: random.Random) -> World:
    """The model is not up to the work, whatever it is told."""
    able = rng.uniform(0.4, 0.6)
    return World((Phase(420, 0.2),), weights={"": Abilities(able, {"answer": 0.9})})


def _regression(rng: random.Random) -> World:
    """The last update made it worse at everything."""
    worse = rng.uniform(0.55, 0.7)
    weights = {"": Abilities(), "support-c-second": Abilities(worse)}
    return World((Phase(220, 0.4), Phase(220, 0.4, "support-c-second")), weights=weights)


def _workload_shift(rng: random.Random) -> World:
    """Other customers come, and are served as well as the ones before."""
    shares = rng.choice([(0.1, 0.8), (0.8, 0.1), (0.2, 0.6)])
    return World(tuple(Phase(180, share) for share in shares))


def _noise(rng: random.Random) -> World:
    return World((Phase(360, rng.uniform(0.2, 0.6)),), weights={"": Abilities(rng.uniform(0.95, 0.98))})


def _reward_hack(rng: random.Random) -> World:
    """The last update writes briefly; a judge that likes long answers finds it worse, the customers don't."""
    weights = {"": Abilities(), "support-c-brief": Abilities()}
    wordy = {"": rng.uniform(2.0, 3.0), "support-c-brief": rng.uniform(0.4, 0.8)}
    phases = (Phase(160, 0.5), Phase(200, 0.5, "support-c-brief"))
    return World(phases, weights=weights, wordy=wordy, judge=Judge(rng.uniform(60, 90)), outcomes=rng.uniform(0.3, 0.5))


SCENARIOS = (
    Scenario("missing fact", "memory", _missing_fact),
    Scenario("misrouted tool", "tools", _misrouted_tool),
    Scenario("malformed arguments", "tools", _malformed_arguments),
    Scenario("missing procedure", "skill", _missing_procedure),
    Scenario("over-strict wording", "harness", _strict_wording),
    Scenario("broad inability", "policy", _broad_inability),
    Scenario("regression", "rollback", _regression),
    Scenario("workload shift", "no-op", _workload_shift, faulty=False),
    Scenario("noise only", "no-op", _noise, faulty=False),
    Scenario("reward hack", "no-op", _reward_hack),
)
