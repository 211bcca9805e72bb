"""Training that never stops serving: rollouts, training and weight updates at the same time.

    agents ──▶ gateway ─▶ log ──▶ Collector ──▶ Trainer (a process) ──▶ worker: load, probe ──▶ flip ──▶ unload
       ▲          │429                 │                                                          │
       └──────────┴─ admission ◀───────┘ ◀───────────────────── the next version ─────────────────┘

Staleness of a token is how many weight updates have been served since the one that sampled it. At most η is learned
from; it is judged where a row is consumed, token by token, from the versions the events record. While so many rollouts
wait that the last of them would be too old at its turn, clients that said they only train are asked to wait
(`registry.admission`); users are served whatever happens.

    python -m flows.online --agent A --actor NAME [--updates 10] [--staleness 2] [--algorithm ppo]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from atdp import clock
from evaluators.cases import cases_of
from evoplane.settings import Settings, settings
from flows import row_sets, rows, snapshot, tenancy, training
from flows.policies import candidate_name
from flows.row_sets import Wanted
from registry import admission, audit, control, pointers
from registry.admission import Admission
from registry.manifest import AgentVersion, Manifest, Policy
from services.proxy.store import StoreReader, open_reader
from services.worker import client

_POLL_S = 1.0
_UNLOAD_AFTER = 2
"""Updates an old version stays loaded: it is `previous` after the first."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to train online."""

    agent: str
    actor: str
    """Who started it; every flip is in the audit log under this name."""
    tenants: tuple[str, ...]
    algorithm: str = "ppo"
    hyperparameters: dict[str, Any] = {}
    staleness: int = 2
    """η"""
    groups: int = 8
    """Groups with contrast that one update learns from."""
    group_size: int = 8
    """Attempts a group needs before it is looked at."""
    learning_rate: float = 3e-4
    epochs: int = 1
    batch_size: int = 16
    temperature: float = 1.0
    lora_rank: int = 16
    threads: int = 1


class Group(msgspec.Struct):
    """Attempts at one task. A row's tokens name versions by their ordinal."""

    name: str
    rows: list[dict[str, Any]] = []
    rewards: dict[str, float] = {}
    """By trajectory."""

    @property
    def oldest(self) -> int:
        return min(span["version"] for row in self.rows for span in row["policy_versions"])


class Collector:
    """Reads the log and sorts what was rewarded into groups."""

    def __init__(self, config: Settings, reader: StoreReader, plan: Plan, heldout: Callable[[str], bool]) -> None:
        self._config = config
        self._reader = reader
        self._plan = plan
        self._heldout = heldout
        """Requests that are never trained on."""
        self._seen: set[str] = set()
        # what ended before is not taken: an earlier training of this agent may have learned from it
        self._since = dict.fromkeys(plan.tenants, clock.from_epoch(time.time()))
        self.waiting: dict[str, Group] = {}
        self.counts: Counter[str] = Counter()
        """What became of every trajectory and row, by reason."""
        self.ages: Counter[int] = Counter()
        """Staleness of the rows that were looked at for training, in updates."""
        self.rewards: list[float] = []

    def poll(self, versions: Sequence[str]) -> int:
        """Take in what has ended since; gives how many trajectories that was."""
        new = 0
        for tenant in self._plan.tenants:
            found = self._reader.trajectories(tenant, agent=self._plan.agent, since=self._since[tenant])
            for row in found:
                if row.closed is None or row.trajectory_id in self._seen:
                    continue
                self._seen.add(row.trajectory_id)
                new += self._take(tenant, row.trajectory_id, versions)
            if found:
                # an open one may be older than the newest: go back to the oldest that is still open
                still = [row.last_at for row in found if row.closed is None]
                self._since[tenant] = min([max(row.last_at for row in found), *still])
        return new

    def ready(self, version: int) -> list[Group] | None:
        """Groups for one update of weights `version`, oldest first, or None while there are too few.

        What is too old by now is dropped and counted; so are groups that all failed or all succeeded.
        """
        for name, group in list(self.waiting.items()):
            if not group.rows:
                continue
            self._drop_stale(group, version)
            if len(group.rewards) < self._plan.group_size:
                continue
            if len(set(group.rewards.values())) == 1:
                self.counts["rows whose group was rewarded alike"] += len(group.rows)
                del self.waiting[name]
        whole = [g for g in self.waiting.values() if len(g.rewards) >= self._plan.group_size and g.rows]
        if len(whole) < self._plan.groups:
            return None
        chosen = sorted(whole, key=lambda g: g.oldest)[: self._plan.groups]
        for group in chosen:
            del self.waiting[group.name]
            for row in group.rows:
                self.ages[version - min(span["version"] for span in row["policy_versions"])] += 1
            self.counts["rows learned from"] += len(group.rows)
        return chosen

    def enough(self, *, training: bool) -> bool:
        """Would a rollout begun now be older than η when its turn comes? What is being learned from counts, too."""
        whole = sum(len(g.rewards) >= self._plan.group_size for g in self.waiting.values())
        return whole + training * self._plan.groups >= (self._plan.staleness + 1) * self._plan.groups

    def _drop_stale(self, group: Group, version: int) -> None:
        kept = []
        for row in group.rows:
            age = version - min(span["version"] for span in row["policy_versions"])
            if age <= self._plan.staleness:
                kept.append(row)
            else:
                self.ages[age] += 1
                self.counts["rows that were too old"] += 1
        if len(kept) < len(group.rows):
            group.rows = kept
            there = {row["trajectory"] for row in kept}
            group.rewards = {name: reward for name, reward in group.rewards.items() if name in there}

    def _take(self, tenant: str, trajectory: str, versions: Sequence[str]) -> int:
        records = [self._reader.resolve(tenant, record) for record in self._reader.records(tenant, trajectory)]
        entry = snapshot.Entry(tenant, records, cases_of(tenant, records, lambda _: []), closed=True)
        wanted = Wanted(kind="groups", heldout_share=0.0, temperature=self._plan.temperature)
        if (reason := row_sets.refused(entry, wanted)) is not None:
            self.counts[reason] += 1
            return 0
        if self._heldout(entry.cases[0].request):
            self.counts["held out"] += 1
            return 0
        built, reward = rows.build(records), entry.cases[-1].reward
        if built.dropped or not built.rows or reward is None:
            self.counts["incomplete trajectory"] += 1
            return 0
        self.rewards.append(reward)
        ordinals = rows.ordinals(versions)
        name = rows.group_of(tenant, built.rows[0])
        group = self.waiting.setdefault(name, Group(name))
        for turn, row in enumerate(built.rows):
            if any(abs(t - self._plan.temperature) > 1e-6 for t in row.temperatures):
                self.counts["sampled at another temperature"] += 1
                continue
            made = rows.encoded(row, ordinals, reward=reward, group=name, trajectory=trajectory, turn=turn)
            if made is None:
                self.counts["given by weights that are not this agent's"] += 1
                continue
            group.rows.append(made)
            group.rewards[trajectory] = reward
        return 1


class Served(msgspec.Struct, frozen=True):
    """The weights users get now."""

    version: AgentVersion
    adapter: Path | None
    ordinal: int


Register = Callable[[str, Manifest, str], AgentVersion]
"""(agent, manifest, parent) → the version, known to the gateways."""


class Online:
    """One online training of one agent."""

    def __init__(
        self,
        config: Settings,
        plan: Plan,
        work: Path,
        register: Register,
        say: Callable[[str], None] = print,
        heldout: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._config = config
        self._plan = plan
        self._work = work
        self._register = register
        self._say = say
        self._connection = control.connect(config.control_db)
        self._reader = open_reader(config)
        self.collector = Collector(config, self._reader, plan, heldout)
        self.updates: list[dict[str, Any]] = []
        """What each update was made of and how long its parts took."""
        self._retired: list[str] = []

    def run(self, updates: int, until: Callable[[], bool] = lambda: False) -> Served:
        """Make `updates` weight updates, or as many as there are before `until`; the gateway serves the last one."""
        served = self.serving()
        with self._admitting(), ThreadPoolExecutor(1, thread_name_prefix="trainer") as pool:
            training_now: Future[training.Trained] | None = None
            batch: list[Group] = []
            began = idle_since = time.monotonic()
            while len(self.updates) < updates and not until():
                self.collector.poll(self._versions())
                self._admit(training_now is not None)
                if training_now is None and (ready := self.collector.ready(served.ordinal)) is not None:
                    batch, began = ready, time.monotonic()
                    training_now = pool.submit(self._train, batch, served)
                elif training_now is not None and training_now.done():
                    served = self._publish(training_now.result(), batch, served, began, began - idle_since)
                    training_now, idle_since = None, time.monotonic()
                    continue
                time.sleep(_POLL_S)
            if training_now is not None:
                training_now.result()  # not published: whoever stopped us did not ask for it
        return served

    def serving(self) -> Served:
        """What the agent is served with, as the pointers say."""
        route = pointers.read_route(self._connection, self._plan.agent)
        version = pointers.versions(self._connection, self._plan.agent)[route.champion]
        policy = version.manifest.policy
        adapter = None if policy.path is None else (self._config.var / policy.path).resolve()
        return Served(version, adapter, self._versions().index(policy.served_name))

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def _versions(self) -> list[str]:
        return training.weights_served(self._config, self._plan.agent)

    def _train(self, batch: Sequence[Group], served: Served) -> training.Trained:
        folder = self._work / f"update-{served.ordinal + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [msgspec.json.encode(row) + b"\n" for group in batch for row in group.rows]
        (folder / "train.jsonl").write_bytes(b"".join(lines))
        plan = self._plan
        job = {
            "algorithm": plan.algorithm,
            "hyperparameters": plan.hyperparameters,
            "epochs": plan.epochs,
            "batch_size": plan.batch_size,
            "learning_rate": plan.learning_rate,
            "warmup_steps": 0,  # training goes on: every job would warm up, and end before it is warm
            "lora_rank": plan.lora_rank,
            "temperature": plan.temperature,
            "policy_version": served.ordinal,
            "max_staleness": plan.staleness,
            "min_examples": 2,
            "seed": served.ordinal,
            "threads": plan.threads,
            "initial_adapter": str(served.adapter) if served.adapter else None,
        }
        return training.run_job(self._config, folder, folder / "train.jsonl", None, job, lambda _: None)

    def _publish(
        self, trained: training.Trained, batch: Sequence[Group], served: Served, began: float, waited: float
    ) -> Served:
        """Load beside, probe, flip, take out what nobody needs. What the worker refuses is not served."""
        swap = time.monotonic()
        config, plan, parent = self._config, self._plan, served.version
        policy = Policy(
            base=parent.manifest.policy.base,
            served_name=candidate_name(plan.agent, trained.digest),
            adapter=trained.digest,
            path=trained.path,
        )
        client.remember_probe(config, trained.digest, trained.result.get("probe"))
        client.load(config, policy, trained.result.get("probe"))
        manifest = msgspec.structs.replace(parent.manifest, policy=policy)
        version = self._register(plan.agent, manifest, parent.version)
        rewards = [reward for group in batch for reward in group.rewards.values()]
        mean = sum(rewards) / len(rewards)
        why = f"online {plan.algorithm}, {len(rewards)} rollouts rewarded {mean:.2f}"
        pointers.set_champion(self._connection, plan.agent, version.version, why, plan.actor, parent.version)
        self._retire(parent.manifest.policy)
        done = time.monotonic()
        seen = self.collector.rewards[-256:]
        self.updates.append(
            {
                "version": version.version,
                "rollouts": len(rewards),
                "reward": round(mean, 4),
                "recent_success": round(sum(seen) / len(seen), 4),
                "waited_s": round(waited, 1),
                "training_s": round(swap - began, 1),
                "swap_s": round(done - swap, 2),
                "loss": trained.result.get("train_loss"),
            }
        )
        audit.append(self._connection, plan.actor, "online.update", plan.agent, self.updates[-1])
        self._say(f"update {len(self.updates)}: {json.dumps(self.updates[-1])}")
        return Served(version, (config.var / trained.path).resolve(), served.ordinal + 1)

    def _retire(self, old: Policy) -> None:
        if old.adapter is None:
            return
        self._retired.append(old.served_name)
        while len(self._retired) >= _UNLOAD_AFTER:
            client.unload(self._config, self._retired.pop(0))

    @contextmanager
    def _admitting(self) -> Iterator[None]:
        """However training ends, nobody is left waiting for it."""
        try:
            yield
        finally:
            admission.put(self._connection, Admission(agent=self._plan.agent, open=True))

    def _admit(self, training: bool) -> None:
        wait = self.collector.enough(training=training)
        known = self._plan.agent in admission.closed(self._connection)
        if wait != known:
            why = f"as many groups wait as {self._plan.staleness + 1} updates learn from" if wait else ""
            admission.put(self._connection, Admission(agent=self._plan.agent, open=not wait, why=why))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.online", description=__doc__)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--actor", required=True, help="who answers for it; in the audit log")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--tenant", help="one tenant's rollouts; else those of all that agreed to pooling")
    told = parser.parse_args(argv)
    config = settings()
    reader = open_reader(config)
    present = reader.tenants()
    reader.close()
    tenants = [told.tenant] if told.tenant else tenancy.pooled(config, present)
    plan = Plan(agent=told.agent, actor=told.actor, tenants=tuple(tenants), algorithm=told.algorithm,
                staleness=told.staleness, lora_rank=config.evolve.lora_rank, threads=config.worker.threads)  # fmt: skip
    online = Online(config, plan, config.var / "online" / told.agent, _registered(config), heldout=_held_out(config))
    try:
        online.run(told.updates)
    finally:
        online.close()
    print(json.dumps({"updates": online.updates, "counts": online.collector.counts, "ages": online.collector.ages}))
    return 0


def _registered(config: Settings) -> Register:
    from registry import versions

    def register(agent: str, manifest: Manifest, parent: str) -> AgentVersion:
        connection = control.connect(config.control_db)
        return versions.register(
            config, connection, agent, manifest, parent=parent, intervention="policy", description="online update"
        )

    return register


def _held_out(config: Settings) -> Callable[[str], bool]:
    """A share of the tasks, by the hash of their words: the same ones whenever it is asked."""
    bound = config.evolve.heldout_share * 2**32

    def held(request: str) -> bool:
        return int.from_bytes(hashlib.sha256(request.encode()).digest()[:4], "big") < bound

    return held


if __name__ == "__main__":
    sys.exit(main())
