"""One seed's world: a gateway, a worker, agents that know a base URL and a key, and the means to train them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live import Live, Say
from evaluators.cases import cases_of
from examples.calculator.agent import Attempt, Crowd
from examples.calculator.tasks import Task, tasks
from flows import online, training
from flows.collector import Plan
from flows.policies import candidate_name
from flows.rows import turns
from flows.training_set import Writer
from registry.manifest import Manifest, Policy
from services.proxy.store import open_reader
from services.worker import client


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    heldout: int
    """Held-out tasks a measurement asks."""
    demonstrations: int
    """New ones for every step of imitation."""
    imitation_steps: int
    """At most so many."""
    updates: int
    """On-policy updates of a course, at most."""
    groups: int
    group_size: int
    short_updates: int
    """Of the control, of GRPO alone, and for every η."""
    federated_tasks: int
    """That each tenant's users ask."""


QUICK = Size(heldout=12, demonstrations=8, imitation_steps=2, updates=2, groups=2, group_size=4, short_updates=1,
             federated_tasks=12)  # fmt: skip
FULL = Size(heldout=64, demonstrations=8, imitation_steps=8, updates=14, groups=6, group_size=8, short_updates=4,
            federated_tasks=144)  # fmt: skip

FAMILIES = ("short", "long")
_LEARNING_RATE = {"sft": 6e-4, "rl": 2e-4}
_EPOCHS = 1
"""Of one step of imitation: short steps, so that there is one after which 20 to 50% are solved."""
_CONCURRENCY = 16
_TELL_EVERY = 10
"""Optimiser steps after which somebody who waits is told how far it is."""

Row = dict[str, list[int]]
"""`prompt_token_ids` and `completion_token_ids`."""


class School:
    """Measures, teaches and trains agents of one running stack."""

    def __init__(self, stack: Live, folder: Path, seed: int, size: Size, say: Say) -> None:
        self.stack = stack
        self.folder = folder
        self.seed = seed
        self.size = size
        self._say = say
        self._url = stack.config.gateway_url
        self._model = stack.config.model.name

    def measure(self, agent: str, families: tuple[str, ...] = FAMILIES, share: float = 1.0) -> float:
        """Success on (the first `share` of) the held-out tasks, sampled as users are served, nothing reported."""
        asked = tasks(round(self.size.heldout * share), 0, families, held_out=True)
        crowd = Crowd(self._url, self.stack.key(agent, purpose="evaluate"), self._model,
                      concurrency=_CONCURRENCY, report=False)  # fmt: skip
        done = asyncio.run(crowd.work(asked))
        if failed := [attempt.error for attempt in done if attempt.error]:
            raise RuntimeError(f"{len(failed)} of {len(done)} held-out tasks could not be asked: {failed[0]}")
        success = sum(attempt.right for attempt in done) / len(done)
        self._say(f"{agent}: {success:.0%} of {len(done)} held-out tasks ({', '.join(families)})")
        return success

    def start(self, agent: str, adapter: training.Trained | None) -> None:
        """An agent whose first version has the adapter (None: the base model)."""
        self.stack.agent(agent)
        policy = Policy(base=self._model, served_name=self._model)
        if adapter is not None:
            policy = self._policy(agent, adapter)
        version = self.stack.register(agent, Manifest(policy=policy))
        self.stack.flip(agent, version.version, "where it starts")

    def serve(self, agent: str, adapter: training.Trained) -> None:
        """The next version of an agent."""
        version = self.stack.register(agent, Manifest(policy=self._policy(agent, adapter)))
        self.stack.flip(agent, version.version, "the next")

    def imitate(self, agent: str, step: int, before: training.Trained | None) -> training.Trained:
        """Ask new tasks; whoever fails is shown the right first step; learn from what was shown (SFT)."""
        count, tenant = self.size.demonstrations, self.stack.tenants[0]
        self.ask(agent, tenant, tasks(count, self.seed * 1_000 + step, FAMILIES))
        return self.fit(f"{agent}-imitation-{step}", self.shown(agent, tenant, last=count), before)

    def ask(self, agent: str, tenant: str, asked: Sequence[Task]) -> None:
        """Serve these tasks; after a failure somebody shows what the first step should have been."""
        key = self.stack.key(agent, tenant)
        crowd = Crowd(self._url, key, self._model, concurrency=_CONCURRENCY, demonstrate=True)
        self._say(f"{agent}: {len(asked)} tasks of {tenant}")
        asyncio.run(crowd.work(asked))

    def shown(self, agent: str, tenant: str, last: int) -> list[Row]:
        """The demonstrated steps of the newest trajectories as SFT rows: prompts as captured."""
        return [row for shown, _ in self._newest(agent, tenant, last) for row in shown]

    def good(self, agent: str, tenant: str, last: int) -> list[Row]:
        """Of the newest trajectories what was demonstrated, and all steps, as sampled, of what was solved."""
        return [row for shown, solved in self._newest(agent, tenant, last) for row in (*shown, *solved)]

    def _newest(self, agent: str, tenant: str, last: int) -> Iterator[tuple[list[Row], list[Row]]]:
        """Of each trajectory what was demonstrated, and its own steps if it was solved."""
        writer = Writer(self.stack.config.model_dir)
        reader = open_reader(self.stack.config)
        try:
            for trajectory in reader.trajectories(tenant, agent=agent, limit=last):
                records = reader.resolve_all(tenant, reader.records(tenant, trajectory.trajectory_id))
                cases = cases_of(tenant, records, lambda context: reader.tools(tenant, context))
                cases = [case for case in cases if case.trainable and case.prompt_token_ids]
                shown = [case for case in cases if case.demonstration is not None]
                steps = turns(records)[0] if any(case.reward == 1 for case in cases) else []
                yield (
                    [_row(case.prompt_token_ids, writer.completion_ids(case)) for case in shown],
                    [_row(step.prompt, step.completion) for step in steps],
                )
        finally:
            reader.close()

    def fit(
        self, name: str, rows: Sequence[Row], before: training.Trained | None, epochs: int = _EPOCHS
    ) -> training.Trained:
        """SFT on the rows, going on from an adapter."""
        work = self.folder / "training" / name
        work.mkdir(parents=True, exist_ok=True)
        (work / "train.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        options = {
            "algorithm": "sft",
            "epochs": epochs,
            "batch_size": 8,
            "learning_rate": _LEARNING_RATE["sft"],
            "warmup_steps": 0,
            "min_examples": 1,
            "threads": 1,
            "seed": self.seed,
            "initial_adapter": str(self.stack.config.var / before.path) if before else None,
        }
        self._say(f"{name}: learns from {len(rows)} rows")

        def on_metrics(line: dict[str, Any]) -> None:
            if (step := line.get("step")) and step % _TELL_EVERY == 0:
                self._say(f"{name}: step {step} of {line.get('steps')}")

        return training.run_job(self.stack.config, work, work / "train.jsonl", None, options, on_metrics)

    def reinforce(
        self,
        agent: str,
        updates: int,
        *,
        algorithm: str = "ppo",
        staleness: int = 2,
        reward: Callable[[Task, bool], float] | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Online training on rollouts that come while it trains; gives the updates and what became of the rollouts."""
        plan = Plan(
            agent=agent,
            actor="bench",
            tenants=(self.stack.tenants[0],),
            algorithm=algorithm,
            staleness=staleness,
            groups=self.size.groups,
            group_size=self.size.group_size,
            learning_rate=_LEARNING_RATE["rl"],
        )
        run = online.Online(self.stack.config, plan, self.folder / "online" / agent, self.stack.register, self._say)
        with self._rollouts(agent, reward) as alive:
            try:
                run.run(updates, lambda: until() or not alive())
            finally:
                run.close()
        learned, old = run.collector.counts["rows learned from"], run.collector.counts["rows that were too old"]
        return {
            "updates": run.updates,
            "counts": dict(run.collector.counts),
            "ages": {str(age): n for age, n in sorted(run.collector.ages.items())},
            "filtered_share": old / (learned + old) if learned + old else 0.0,
        }

    def _rollouts(self, agent: str, reward: Callable[[Task, bool], float] | None) -> _Rollouts:
        crowd = Crowd(
            self._url,
            self.stack.key(agent),
            self._model,
            concurrency=_CONCURRENCY,
            reward=reward or (lambda task, right: float(right)),
            headers={"x-evoplane-training": "only"},
            patience=1_000,
        )
        return _Rollouts(crowd, self._endless())

    def _endless(self) -> Iterator[Task]:
        """Groups of attempts at tasks that no measurement asks."""
        for epoch in range(1_000_000):
            for task in tasks(200, self.seed * 7_919 + epoch + 1, FAMILIES):
                for _ in range(self.size.group_size):
                    yield task

    def _policy(self, agent: str, adapter: training.Trained) -> Policy:
        policy = Policy(
            base=self._model,
            served_name=candidate_name(agent, adapter.digest),
            adapter=adapter.digest,
            path=adapter.path,
        )
        client.load(self.stack.config, policy, adapter.result.get("probe"))
        return policy


class _Rollouts:
    """A crowd at work in a thread of its own while the block runs; gives whether it still lives."""

    def __init__(self, crowd: Crowd, asked: Iterator[Task]) -> None:
        self._crowd = crowd
        self._asked = asked
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rollouts", daemon=True)
        self.done: list[Attempt] = []

    def __enter__(self) -> Callable[[], bool]:
        self._thread.start()
        return self._thread.is_alive

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    def _work(self) -> None:
        async def until_stopped() -> None:
            working = asyncio.create_task(self._crowd.work(self._asked, self._stop.is_set))
            while not working.done() and not self._stop.is_set():  # noqa: ASYNC110 - another thread's event
                await asyncio.sleep(0.5)
            await asyncio.wait([working], timeout=60)
            working.cancel()

        asyncio.run(until_stopped())


def _row(prompt: list[int], completion: list[int]) -> Row:
    return {"prompt_token_ids": prompt, "completion_token_ids": completion}


def shuffled(seed: int, rate: float) -> Callable[[Task, bool], float]:
    """Rewards that know nothing of the outcome, as often 1 as outcomes were."""
    dice = random.Random(seed)
    return lambda task, right: float(dice.random() < rate)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and how many seconds it took."""
    began = time.monotonic()
    return work(), round(time.monotonic() - began, 1)
