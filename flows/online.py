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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from evaluators.rewards import rule_of
from evoplane.settings import Settings, ending_when_wrong, settings
from flows import tenancy, training
from flows.collector import Collector, Group, Plan
from flows.policies import candidate_name
from registry import admission, audit, control, pointers, tenants
from registry.admission import Admission
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError
from services.proxy.store import open_reader
from services.worker import client
from services.worker.training.algorithms import algorithm
from services.worker.training.job import JobError

_POLL_S = 1.0
_TELL_S = 60.0
"""How often somebody who waits is told what there is so far."""
_UNLOAD_AFTER = 2
"""Updates an old version stays loaded: it is `previous` after the first."""


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
        self.collector = Collector(self._reader, plan, heldout, rule_of(config, plan.agent))
        self.updates: list[dict[str, Any]] = []
        """What each update was made of and how long its parts took."""
        self._retired: list[str] = []

    def run(self, updates: int, until: Callable[[], bool] = lambda: False) -> Served:
        """Make `updates` weight updates, or as many as there are before `until`; the gateway serves the last one."""
        served = self.serving()
        with self._admitting(), ThreadPoolExecutor(1, thread_name_prefix="trainer") as pool:
            training_now: Future[training.Trained] | None = None
            batch: list[Group] = []
            began = idle_since = told = time.monotonic()
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
                if time.monotonic() - told >= _TELL_S:
                    self._say(self._so_far(training_now is not None))
                    told = time.monotonic()
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

    def _so_far(self, training: bool) -> str:
        plan, waiting = self._plan, self.collector.waiting.values()
        whole = sum(len(group.rewards) >= plan.group_size for group in waiting)
        doing = "training" if training else f"waiting for {plan.groups} groups of {plan.group_size} attempts"
        return f"{doing}: {whole} whole, {len(waiting) - whole} begun; so far {json.dumps(self.collector.counts)}"

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
    parser = argparse.ArgumentParser(
        prog="python -m flows.online", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", required=True)
    parser.add_argument("--actor", required=True, help="who answers for it; in the audit log")
    parser.add_argument("--updates", type=int, default=10, help="weight updates until it ends (default 10)")
    parser.add_argument("--staleness", type=int, default=2, help="updates that a token may be old (default 2)")
    parser.add_argument("--algorithm", default="ppo", help="of docs/learning.md (default ppo)")
    parser.add_argument("--tenant", help="one tenant's rollouts; else those of all that agreed to pooling")
    told = parser.parse_args(argv)
    config = settings()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        plan = _plan(config, told)
        made = Online(
            config, plan, config.var / "online" / plan.agent, _registered(config), say, heldout=_held_out(config)
        )
        say(f"learning from {', '.join(plan.tenants)} with {plan.algorithm}; Ctrl-C ends it")
        status = 0
        try:
            made.run(told.updates)
        except KeyboardInterrupt:
            status = 130
        finally:
            made.close()
    except (RegistryError, JobError, training.TrainingFailed, client.PolicyRefused) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"updates": made.updates, "counts": made.collector.counts, "ages": made.collector.ages}))
    return status


def _plan(config: Settings, told: argparse.Namespace) -> Plan:
    """Raises `RegistryError` or `JobError` for what would wait for ever."""
    connection = control.connect(config.control_db)
    tenants.get_agent(connection, told.agent)
    present = sorted({key.tenant for key in tenants.list_keys(connection) if key.agent == told.agent})
    if not present:
        raise RegistryError(
            f"nobody has a key for {told.agent!r}: `evoplane key create --tenant T --agent {told.agent}` makes one"
        )
    if told.tenant and told.tenant not in present:
        raise RegistryError(f"tenant {told.tenant!r} has no key for {told.agent!r}; there are: {', '.join(present)}")
    learns_from = algorithm(told.algorithm).learns_from()
    if learns_from not in ("groups", "successes"):
        raise JobError(f"{told.algorithm} learns from {learns_from}; online there are attempts and their rewards only")
    return Plan(agent=told.agent, actor=told.actor, algorithm=told.algorithm, staleness=told.staleness,
                tenants=(told.tenant,) if told.tenant else tuple(tenancy.pooled(config, present)),
                lora_rank=config.evolve.lora_rank, threads=config.worker.threads)  # fmt: skip


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
    with ending_when_wrong():
        sys.exit(main())
