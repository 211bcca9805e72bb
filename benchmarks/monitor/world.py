"""Everything that is so in one simulated life: the shop, its agent's tools, prompt, versions, and who comes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.monitor.desk import BackOffice, Judge
from benchmarks.monitor.model import Abilities
from examples.support.scenario import facts_now
from examples.support.shop import TOOLS
from registry.manifest import Guardrail

BASE = "smollm2-135m"


@dataclass(frozen=True)
class Phase:
    """A stretch of time: how many customers come, how many of them ask questions, and which weights answer."""

    sessions: int
    questions: float = 0.4
    weights: str = ""
    """Of the version that serves then; empty are the base model's. Other weights than before are a new version."""


@dataclass(frozen=True)
class World:
    phases: Sequence[Phase] = (Phase(360),)
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: facts_now(changed=False))
    """What is true."""
    remembered: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: facts_now(changed=False))
    """What the agent's memory says."""
    tools: Sequence[Mapping[str, Any]] = tuple(TOOLS)
    office: BackOffice = field(default_factory=BackOffice)
    rule: str = ""
    """A sentence in the agent's own prompt."""
    guardrails: tuple[Guardrail, ...] = ()
    weights: Mapping[str, Abilities] = field(default_factory=lambda: {"": Abilities()})
    wordy: Mapping[str, float] = field(default_factory=dict)
    judge: Judge | None = None
    outcomes: float = 1.0


def tools_with(descriptions: Mapping[str, str] | None = None, without_enum: str = "") -> tuple[Mapping[str, Any], ...]:
    """The demo's tools with other descriptions, or without the enum of an argument of that name."""
    tools = copy.deepcopy(TOOLS)
    for tool in tools:
        function = tool["function"]
        function["description"] = (descriptions or {}).get(function["name"], function["description"])
        for name, schema in function["parameters"]["properties"].items():
            if name == without_enum:
                schema.pop("enum", None)
    return tuple(tools)
