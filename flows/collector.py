"""Collecting for online training: what has ended is read from the log, sorted into groups, and dropped when too old."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atdp import clock
from evaluators.cases import Key
from evaluators.rewards import DEFAULT_RULE, RewardRule
from flows import row_sets, rows, snapshot
from flows.row_sets import Wanted
from services.proxy.store import StoreReader


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

    def __init__(
        self, reader: StoreReader, plan: Plan, heldout: Callable[[str], bool], rule: RewardRule = DEFAULT_RULE
    ) -> None:
        self._reader = reader
        self._plan = plan
        self._rule = rule
        """What the attempts are worth says the agent's declared rule."""
        self._heldout = heldout
        """Requests that are never trained on."""
        self._seen: set[Key] = set()
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
                if row.closed is None or (tenant, row.trajectory_id) in self._seen:
                    continue
                self._seen.add((tenant, row.trajectory_id))
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
        records = self._reader.resolve_all(tenant, self._reader.records(tenant, trajectory))
        entry = snapshot.entry(tenant, records, lambda _: [], self._rule, closed=True)
        wanted = Wanted(kind="groups", temperature=self._plan.temperature)
        if (reason := row_sets.refused(entry, wanted)) is not None:
            self.counts[reason] += 1
            return 0
        if self._heldout(entry.cases[0].request):
            self.counts["held out"] += 1
            return 0
        built, reward = rows.build(records), entry.reward
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
            made = rows.encoded(
                row, ordinals, reward=reward, group=name, trajectory=f"{tenant}/{trajectory}", turn=turn
            )
            if made is None:
                self.counts["given by weights that are not this agent's"] += 1
                continue
            group.rows.append(made)
            group.rewards[made["trajectory"]] = reward
        return 1
