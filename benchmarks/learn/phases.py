"""What one seed goes through. Every phase is a figure's evidence, and can be run alone."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.learn.school import Row, School, shuffled, timed
from examples.calculator.tasks import tasks
from flows import training
from services.worker.adapters import average

_GOAL = 0.8
_CLEARLY = 0.05
"""Above the goal, where the lift's training ends: groups that all succeed teach nothing, and others get rare."""
_START = (0.2, 0.5)
_ENOUGH = 0.25
"""Success after which imitation stops. It shows the first step only; RL must find what to make of the result."""
_ETAS = (0, 2, 8)
_FEDERATED_EPOCHS = 2
_GLANCE = 0.5
"""Share of the held-out tasks that a step of imitation is looked at with; figures use all."""
_LADDER = "ladder.json"

Rung = tuple[training.Trained | None, float]
"""An adapter (None: the base model) and its success on held-out tasks."""


class Phases:
    """The phases of one seed; the imitation they all begin with is done once."""

    def __init__(self, school: School) -> None:
        self._school = school
        self._ladder: list[Rung] | None = None
        self._climbed_s = 0.0
        self._kept = school.folder.parent / "ladder"

    def lift(self) -> dict[str, Any]:
        """From the base model: imitation until a quarter is solved, then on-policy until the goal is passed."""
        done_before = self._kept.exists()
        ladder = self.ladder()
        start = max(ladder, key=lambda rung: rung[1])[0]
        school, agent = self._school, "lift"
        base = self._measured("lift-base", None)
        curve = [success := self._measured(agent, start)]
        updates: list[dict[str, Any]] = []
        chunk = max(1, school.size.updates // 5)
        began = 0.0
        while len(updates) < school.size.updates and curve[-1] < _GOAL + _CLEARLY:
            made, seconds = timed(lambda: school.reinforce(agent, chunk))
            began += seconds
            updates += made["updates"]
            curve.append(school.measure(agent))
            if len(made["updates"]) < chunk:
                break
        return {
            "base": base,
            "imitated": success,
            "final": curve[-1],
            "curve": curve,
            "updates": updates,
            "imitation_s": self._climbed_s,
            "before_s": self._climbed_s if done_before else 0.0,
            "reinforcement_s": round(began, 1),
        }

    def grpo_only(self) -> dict[str, Any]:
        """On-policy learning alone, from a policy that solves 20 to 50% of the tasks."""
        success = self._measured("grpo-only", self._weak())
        made = self._school.reinforce("grpo-only", self._school.size.short_updates, algorithm="grpo", staleness=0)
        final = self._school.measure("grpo-only")
        return {"start": success, "final": final, "lift": final - success, **made}

    def control(self) -> dict[str, Any]:
        """The same from the same start, with rewards that know nothing of the outcome."""
        school, success = self._school, self._measured("control", self._weak())
        reward = shuffled(school.seed, max(0.2, success))
        made = school.reinforce("control", school.size.short_updates, algorithm="grpo", staleness=0, reward=reward)
        final = school.measure("control")
        return {"start": success, "final": final, "lift": final - success, **made}

    def staleness(self) -> dict[str, Any]:
        """The same start under different bounds of staleness: what was filtered, and where it led."""
        start, success, table = self._weak(), 0.0, {}
        for eta in _ETAS:
            agent = f"eta-{eta}"
            success = self._measured(agent, start)
            began = time.monotonic()
            made = self._school.reinforce(agent, self._school.size.short_updates, staleness=eta)
            seconds = round(time.monotonic() - began, 1)
            table[str(eta)] = {
                "filtered_share": made["filtered_share"],
                "final": self._school.measure(agent),
                "ages": made["ages"],
                "seconds": seconds,
            }
        return {"start": success, "eta": table}

    def federated(self) -> dict[str, Any]:
        """Three tenants with a kind of task each, whose agents learn from what was solved and what was shown: an
        adapter of each tenant's own rows, one of everybody's, the average of the adapters."""
        school, asked = self._school, self._school.size.federated_tasks
        families = dict(zip(school.stack.tenants, ("short", "long", "large"), strict=True))
        weak = self._weak()
        rows: dict[str, list[Row]] = {}
        school.start("federated-start", weak)
        for tenant, family in families.items():
            school.ask("federated-start", tenant, tasks(asked, school.seed, (family,)))
            rows[tenant] = school.good("federated-start", tenant, last=asked)
        everybody = [row for each in rows.values() for row in each]
        own = {name: school.fit(f"federated-{name}", rows[name], weak, _FEDERATED_EPOCHS) for name in families}
        pooled = school.fit("federated-pooled", everybody, weak, _FEDERATED_EPOCHS)
        paths = [school.stack.config.var / adapter.path for adapter in own.values()]
        folder = school.stack.config.var / "policies" / "averaged"
        mean = average(paths, [len(rows[tenant]) for tenant in families], folder, school.stack.config.evolve.lora_rank)
        averaged = training.Trained(str(mean["digest"]), "policies/averaged", {})
        table: dict[str, dict[str, float]] = {}
        for name, adapter in (("start", weak), *own.items(), ("pooled", pooled), ("averaged", averaged)):
            agent = f"federated-{name}-measured"
            school.start(agent, adapter)
            table[name] = {tenant: school.measure(agent, (family,)) for tenant, family in families.items()}
        return {
            "families": families,
            "heldout": school.size.heldout,
            "rows": {tenant: len(each) for tenant, each in rows.items()},
            "start": table["start"],
            "isolated": {tenant: table[tenant][tenant] for tenant in families},
            "pooled": table["pooled"],
            "averaged": table["averaged"],
            "others": {tenant: table[tenant] for tenant in families},
            "average_lost": mean["lost"],
        }

    def ladder(self) -> list[Rung]:
        """The base model, then after every step of imitation: the adapter and its success on held-out tasks."""
        if self._ladder is None and (self._kept / _LADDER).exists():
            self._ladder = self._remembered()
        if self._ladder is None:
            school, agent, began = self._school, "imitator", time.monotonic()
            school.start(agent, None)
            self._ladder = [(None, school.measure(agent, share=_GLANCE))]
            while self._ladder[-1][1] < _ENOUGH and len(self._ladder) <= school.size.imitation_steps:
                adapter = school.imitate(agent, len(self._ladder), self._ladder[-1][0])
                school.serve(agent, adapter)
                self._ladder.append((adapter, school.measure(agent, share=_GLANCE)))
            self._climbed_s = round(time.monotonic() - began, 1)
            self._remember(self._ladder)
        return self._ladder

    def _remember(self, ladder: list[Rung]) -> None:
        """Keep the adapters for a run that goes on after an interruption."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir(parents=True)
        for adapter, _ in ladder:
            if adapter is not None:
                shutil.copytree(self._school.stack.config.var / adapter.path, self._kept / Path(adapter.path).name)
        (self._kept / _LADDER).write_bytes(msgspec.json.encode((ladder, self._climbed_s)))

    def _remembered(self) -> list[Rung]:
        kept = msgspec.json.decode((self._kept / _LADDER).read_bytes(), type=tuple[list[Rung], float])
        ladder, self._climbed_s = kept
        for adapter, _ in ladder:
            if adapter is not None:
                there = self._school.stack.config.var / adapter.path
                shutil.copytree(self._kept / there.name, there, dirs_exist_ok=True)
        return ladder

    def _weak(self) -> training.Trained | None:
        """The rung between 20 and 50%, or the one nearest to the middle of that."""
        middle = sum(_START) / 2
        return min(self.ladder(), key=lambda rung: abs(rung[1] - middle))[0]

    def _measured(self, agent: str, adapter: training.Trained | None) -> float:
        """Start an agent, and its success on all held-out tasks."""
        self._school.start(agent, adapter)
        return self._school.measure(agent)


PHASES = {
    "lift": Phases.lift,
    "grpo-only": Phases.grpo_only,
    "control": Phases.control,
    "staleness": Phases.staleness,
    "federated": Phases.federated,
}
