"""From a proposed recipe to a training job: which rows are made of the snapshot, and what the job is told.

What an algorithm learns from it declares itself (`Algorithm.learns_from`); the kinds of sets are `flows.training`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evoplane.settings import Settings
from flows.training import Kind, weights_served
from registry import control, pointers
from services.worker.training.algorithms import Source, algorithm

KINDS: dict[Source, Kind] = {
    "demonstrations": "sft",
    "successes": "rft",
    "groups": "groups",
    "pairs": "corrected",
    "hints": "hints",
}
"""Steps with process rewards don't come from a snapshot alone."""


def kind(recipe: Mapping[str, Any]) -> Kind:
    """The kind of set a recipe (a policy proposal's content) is carried out with."""
    return KINDS[algorithm(recipe["algorithm"]).learns_from()]


def options(config: Settings, agent: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the job that carries a recipe out."""
    told = {"algorithm": recipe["algorithm"], "learning_rate": recipe["learning_rate"]}
    return told | start(config, agent, recipe["algorithm"])


def start(config: Settings, agent: str, name: str) -> dict[str, Any]:
    """Fields of a job that say where the algorithm begins.

    What imitates begins anew, from everything that is known to be right. What moves the policy by its own answers goes
    on from the champion's weights, and compares only with what exactly these gave.
    """
    how, told = algorithm(name), dict[str, Any]()
    connection = control.connect(config.control_db)
    route = pointers.all_routes(connection).get(agent)
    if how.imitates or route is None:
        return told
    policy = pointers.versions(connection, agent)[route.champion].manifest.policy
    if policy.path is not None:
        told["initial_adapter"] = str((config.var / policy.path).resolve())
    if how.learns_from() == "groups":
        told |= {"policy_version": weights_served(config, agent).index(policy.served_name), "max_staleness": 0}
    return told
