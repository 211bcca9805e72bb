"""Algorithms by name: the built-in ones, and those that installed packages offer.

A package adds one with an entry point of the group `evoplane.algorithms`, the algorithm's name on the left,
its class (`base.Algorithm`) on the right; `docs/learning.md` has a worked example.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

from services.worker.training.algorithms.base import Algorithm, Needs, Source
from services.worker.training.job import JobError

__all__ = ["BUILT_IN", "Algorithm", "Needs", "Source", "algorithm", "names"]

GROUP = "evoplane.algorithms"

BUILT_IN = {
    "sft": "SFT",
    "rft": "RFT",
    "dpo": "DPO",
    "ipo": "IPO",
    "reinforce": "Reinforce",
    "rloo": "RLOO",
    "grpo": "GRPO",
    "dr_grpo": "DrGRPO",
    "lite_ppo": "LitePPO",
    "gspo": "GSPO",
    "ppo": "PPO",
    "opd": "OPD",
    "prm": "PRM",
}
"""Each in the module of its name. They are found without the package's metadata, so also in a plain checkout."""


def names() -> list[str]:
    """Every algorithm a job may name."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def algorithm(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """The named algorithm with these hyper-parameters, defaults for the rest.

    Raises `JobError` for an unknown name or hyper-parameter, or a value of the wrong kind.
    """
    try:
        return msgspec.convert(dict(hyperparameters or {}), type=_class(name))
    except msgspec.ValidationError as error:
        raise JobError(f"hyperparameters of {name}: {error}") from error


def _class(name: str) -> type[Algorithm]:
    if name in BUILT_IN:
        found: type[Algorithm] = getattr(import_module(f"{__name__}.{name}"), BUILT_IN[name])
        return found
    offered = [point for point in entry_points(group=GROUP) if point.name == name]
    if not offered:
        raise JobError(f"algorithm: {name} is none of {', '.join(names())}")
    if len(offered) > 1:
        raise JobError(f"algorithm: {name} is offered by several packages: {', '.join(p.value for p in offered)}")
    loaded = offered[0].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Algorithm)):
        raise JobError(f"algorithm: {offered[0].value} is not a subclass of {Algorithm.__module__}.Algorithm")
    return loaded
