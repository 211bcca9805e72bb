"""Snapshots: the evidence of one evolution, frozen under a content hash by DVC.

The repository (`settings.snapshots_dir`, no SCM) holds one directory of JSON lines per agent, a file a
tenant. A snapshot's id is DVC's directory hash; it is recomputed here before it is announced, and one
lock keeps a second writer waiting.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import orjson

from dashboards.reading import CaseReader
from evaluators.cases import Case, cases_of
from evaluators.quality import SUITE, QualityResult
from evaluators.rewards import resolve
from evaluators.rewards import rule as rewards
from evoplane.settings import Settings
from flows import locks
from registry import control, tenants
from services.proxy.store import open_reader

GATE = "gate.json"
"""What the data gate said, beside the trajectories it judged."""
_REWARD_RULE = "reward-rule.json"
"""The agent's rule when the snapshot was taken: part of it, and of its hash."""
_WRITER_WAIT_S = 600.0
"""Another agent's snapshot or training set takes seconds to a minute."""


class SnapshotError(Exception):
    """The snapshot could not be made or does not verify."""


class Snapshot(msgspec.Struct, frozen=True):
    id: str
    """DVC's directory hash, `….dir`."""
    path: str
    trajectories: int
    tenants: tuple[str, ...]
    reward_rule: str = ""
    """Digest of the rule its rewards are made by."""


def take(config: Settings, agent: str, repository: Path | None = None) -> Snapshot:
    """Write and commit a snapshot of the agent's recent served trajectories, in the deployment's repository unless
    another is given.

    Raises `SnapshotError` when the hash DVC gives is not the hash of what was written.
    """
    root = prepare(config, repository)
    with writer_lock(root):
        folder = root / agent / "trajectories"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        counts = write(config, agent, folder)
        from dvc.repo import Repo

        with Repo(str(root)) as repo:
            out = repo.add(str(folder))[0].outs[0]
        id = str(out.hash_info.value)
        recomputed = directory_hash(folder)
        if id != recomputed:
            raise SnapshotError(f"DVC names the snapshot {id}, its content hashes to {recomputed}")
        history = root / agent / "history"
        history.mkdir(exist_ok=True)
        shutil.copy(root / agent / "trajectories.dvc", history / f"{id}.yaml")
    rule = rewards.decode((folder / _REWARD_RULE).read_bytes())
    return Snapshot(id, str(folder), sum(counts.values()), tuple(sorted(counts)), rule.digest)


class Entry(msgspec.Struct, frozen=True):
    """One trajectory of a snapshot."""

    tenant: str
    records: list[dict[str, Any]]
    cases: list[Case]
    """Its decisions, in order."""
    closed: bool
    """Had it ended when the snapshot was taken?"""
    reward: float | None
    """What the rule says the whole of it is worth; where it doesn't, what its last decision is."""


def entry(
    tenant: str,
    records: list[dict[str, Any]],
    tools_of: Callable[[str], list[dict[str, Any]]],
    rule: rewards.RewardRule,
    closed: bool,
) -> Entry:
    """A trajectory's records, read and judged by a declared rule."""
    cases = cases_of(tenant, records, tools_of, rule=rule)
    said = [r for r in records if r["record"] == "annotation"]
    whole = resolve(said, rule, events=[r for r in records if r["record"] == "event"]).trajectory
    last = cases[-1].reward if cases else None
    return Entry(tenant, records, cases, closed, last if whole is None else whole.reward)


def read(folder: Path) -> list[Case]:
    """The cases of a snapshot, oldest first."""
    cases = [case for entry in entries(folder) for case in entry.cases]
    return sorted(cases, key=lambda c: (c.at, c.event_id))


def entries(folder: Path) -> Iterator[Entry]:
    """The trajectories of a snapshot, tenant by tenant, judged by the rule that was frozen with it."""
    kept = folder / _REWARD_RULE
    rule = rewards.decode(kept.read_bytes()) if kept.exists() else rewards.DEFAULT_RULE
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            said: dict[str, Any] = orjson.loads(line)
            tools: dict[str, list[dict[str, Any]]] = said["tools"]
            tools_of = partial(_tools, tools)
            yield entry(file.stem, said["records"], tools_of, rule, bool(said.get("closed")))


def _tools(tools: dict[str, list[dict[str, Any]]], context_id: str) -> list[dict[str, Any]]:
    return tools.get(context_id, [])


def pass_gate(config: Settings, agent: str, result: QualityResult, repository: Path | None = None) -> None:
    """Keep what the data gate said of the agent's present snapshot; no training set is made without."""
    folder = (repository or config.snapshots_dir).resolve() / agent
    verdict = {
        "snapshot": directory_hash(folder / "trajectories"),
        "passed": result.passed,
        "summary": result.summary,
        "declared": result.declared,
        "evaluated": result.evaluated,
        "suite": hashlib.sha256(SUITE.read_bytes()).hexdigest(),
    }
    (folder / GATE).write_text(json.dumps(verdict, indent=2, sort_keys=True))


def directory_hash(folder: Path) -> str:
    """DVC's id of a directory, computed without DVC."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    entries = [
        {"md5": hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest(), "relpath": str(p.relative_to(folder))}
        for p in files
    ]
    entries.sort(key=lambda e: e["relpath"])
    return hashlib.md5(json.dumps(entries).encode(), usedforsecurity=False).hexdigest() + ".dir"


def prepare(config: Settings, repository: Path | None = None) -> Path:
    """The DVC repository (the deployment's unless given), initialised on first use."""
    root = (repository or config.snapshots_dir).resolve()
    if not (root / ".dvc").exists():
        root.mkdir(parents=True, exist_ok=True)
        with writer_lock(root):
            if not (root / ".dvc").exists():
                from dvc.repo import Repo

                Repo.init(str(root), no_scm=True).close()
                with Repo(str(root)) as repo, repo.config.edit() as options:
                    options["core"]["analytics"] = False
                    options["core"]["check_update"] = False
    return root


@contextmanager
def writer_lock(root: Path) -> Iterator[None]:
    """One writer at a time; raises `SnapshotError` when another one does not finish in time."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.exclusive(root / ".writer.lock", _WRITER_WAIT_S))
        except locks.Busy as error:
            raise SnapshotError(f"another process is writing to {root}: {error}") from error
        yield


def write(config: Settings, agent: str, folder: Path) -> dict[str, int]:
    reader = open_reader(config)
    tools = CaseReader(reader, agent)
    (folder / _REWARD_RULE).write_bytes(rewards.encode(rewards.rule_of(config, agent)))
    counts: dict[str, int] = {}
    denied = {t.id for t in tenants.list_tenants(control.connect(config.control_db)) if t.train == "deny"}
    for tenant in reader.tenants():
        lines = []
        for row in reader.trajectories(tenant, agent=agent, limit=config.monitor.window):
            records = reader.resolve_all(tenant, reader.records(tenant, row.trajectory_id))
            if not _belongs(records):
                continue
            if tenant in denied:
                records = ineligible(records)
            contexts = {r["ctx"] for r in records if "ctx" in r}
            entry = {
                "tools": {c: tools.tools(tenant, c) for c in sorted(contexts)},
                "records": records,
                "closed": row.closed is not None,
            }
            lines.append(orjson.dumps(entry))
        if lines:
            (folder / f"{tenant}.jsonl").write_bytes(b"\n".join(reversed(lines)) + b"\n")
            counts[tenant] = len(lines)
    return counts


def ineligible(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A trajectory's records with training denied: what a tenant says now outweighs what the header kept."""
    header, *rest = records
    gov = header.get("gov") or {}
    eligibility = {**(gov.get("eligibility") or {}), "train": "deny"}
    return [{**header, "gov": {**gov, "eligibility": eligibility}}, *rest]


def _belongs(records: list[dict[str, Any]]) -> bool:
    """Served to users (not an evaluation, probe or shadow), judged, and not withheld from evaluation."""
    tags = [(r.get("m") or {}).get("tags") or {} for r in records if r["record"] == "event"]
    if any(t.get("purpose", "serve") != "serve" or t.get("role") in ("shadow", "pinned") for t in tags):
        return False
    gov = (records[0].get("gov") or {}).get("eligibility") or {}
    if gov.get("evaluate") == "deny":
        return False
    return any(r["record"] == "annotation" for r in records)
