"""A made population of decisions: champion and candidate succeed on each task with chances of their own.

Real `Case` records with recorded outcomes drawn by chance, real `select` and `compare`; only the agents are dice.
Tasks differ in how hard they are, and what one agent finds hard the other does mostly too.
"""

from __future__ import annotations

from random import Random

import msgspec

from evaluators.cases import Action, Case, Remark
from evaluators.intervals import Interval
from evaluators.replay import Replay, compare, select

RIGHT, WRONG = Action(text="12 months"), Action(text="9 days")
_TASKS = 400
"""Kinds of task there are; a population meets each with equal chance."""


class Agents(msgspec.Struct, frozen=True):
    """Chances of success by task, and what follows from them."""

    champion: list[float]
    candidate: list[float]

    @property
    def effect(self) -> float:
        """The true improvement: p(candidate) - p(champion) over all tasks."""
        return (sum(self.candidate) - sum(self.champion)) / len(self.champion)


def agents(random: Random, base: float, effect: float, spread: float = 0.2) -> Agents:
    """Two agents whose mean success is about `base` and `base + effect`, task by task correlated."""
    champion, candidate = [], []
    for _ in range(_TASKS):
        hard = random.gauss(0, spread)
        champion.append(_chance(base + hard))
        candidate.append(_chance(base + effect + hard + random.gauss(0, spread / 2)))
    return Agents(champion, candidate)


def replayed(random: Random, who: Agents, population: int, limit: int, repeats: int = 1) -> Replay:
    """One deployment's life: a recorded population, a selection of it, and the candidate's replay."""
    met = [random.randrange(_TASKS) for _ in range(population)]
    cases = [_case(n, random.random() < who.champion[task]) for n, task in enumerate(met)]
    task_of = {case.key: task for case, task in zip(cases, met, strict=True)}
    chosen = select(cases, limit)
    answers = {
        c.key: [RIGHT if random.random() < who.candidate[task_of[c.key]] else WRONG for _ in range(repeats)]
        for c in chosen
    }
    return compare(chosen, answers, population=cases)


def live(random: Random, chances: list[float], sessions: int) -> list[bool]:
    """Outcomes of an agent's live sessions."""
    return [random.random() < chances[random.randrange(_TASKS)] for _ in range(sessions)]


def covers(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def _chance(value: float) -> float:
    return min(0.98, max(0.02, value))


_TEMPLATE = Case(
    tenant="northwind", agent="support", trajectory_id="tr", session_id="se", event_id="", at="2026-01-01T00:00:00Z",
    agent_version="1", role="champion", purpose="serve", status="ok", messages=[], tools=[], params={},
    prompt_token_ids=[], completion_token_ids=[], overlay_text="", action=Action(), reward=0.0,
    judged_at="2026-01-01T00:00:00Z", parent_event_id=None,
    corrections=(Remark("an", "The warranty is 12 months.", "2026-01-01T00:00:00Z"),),
    demonstration=None, demonstration_id=None, trainable=True, latency_ms=0.0, input_tokens=0, output_tokens=0,
)  # fmt: skip


def _case(n: int, success: bool) -> Case:
    return msgspec.structs.replace(
        _TEMPLATE, event_id=f"ev_{n}", reward=float(success), action=RIGHT if success else WRONG
    )
