"""Looking without acting: `python -m flows.dry_run diagnose|evolve --agent A` prints JSON.

What `evoplane diagnose` and `evoplane evolve --dry-run` start. Candidates are made, trained and replayed as in an
evolution; nothing is registered, recorded or delivered, and what was loaded is taken out again. Snapshot, training set
and adapters lie in a folder that goes with the run (of one that was killed, with the next): the deployment's own stay
as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil

from dashboards.reading import CaseReader
from evaluators import diagnosis
from evoplane.settings import Settings, ending_when_wrong, settings
from flows import candidates, evolution, locks, pages, policies, recipes, training
from flows.interventions import Proposal
from registry import control, pointers
from registry.manifest import Manifest
from registry.tenants import RegistryError
from services.proxy.store import open_reader
from services.worker import client

_PREFIX = "dry-run-"
"""Of the folder of a run, before its process id."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.dry_run", description=__doc__)
    parser.add_argument("what", choices=("diagnose", "evolve"))
    parser.add_argument("--agent", required=True)
    parser.add_argument("--reason", default="a dry run")
    given = parser.parse_args(arguments)
    config = settings()
    look = partial(evolve, reason=given.reason) if given.what == "evolve" else diagnose
    try:
        with _nothing_on_stdout():
            found = look(config, given.agent)
    except (RegistryError, locks.Busy) as error:
        print(f"{given.agent}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(pages.finite(found)))
    return 0


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Standard output is for the JSON alone: what libraries and their children print there goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def diagnose(config: Settings, agent: str) -> dict[str, Any]:
    """`{version, diagnosis, page}` of the agent's recent work, read from the log as it is now."""
    connection = control.connect(config.control_db)
    champion = pointers.versions(connection, agent)[pointers.read_route(connection, agent).champion]
    cases = CaseReader(open_reader(config), agent).read(limit=config.monitor.window)
    earlier = evolution.before(pointers.versions(connection, agent), cases, champion.version)
    found = evolution.gather(config, agent, "live", cases, champion, earlier).diagnosis
    page = diagnosis.page(agent, champion.version, found)
    return {"version": champion.version, "diagnosis": msgspec.to_builtins(found), "page": page}


def evolve(config: Settings, agent: str, reason: str) -> dict[str, Any]:
    """`{state, message, record, pages}` of an evolution that stops before delivery."""
    shown: dict[str, str] = {}
    config.var.mkdir(parents=True, exist_ok=True)
    clean_up(config)
    with TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=config.var) as folder, _loading(config) as loaded:
        scratch = Path(folder)
        repository = scratch / "snapshots"
        work = evolution.Work(
            snapshot=partial(candidates.taken, repository=repository),
            quality=partial(candidates.quality, repository=repository),
            answer=candidates.answer,
            train=partial(_train, scratch=scratch),
            serve=partial(_serve, loaded=loaded),
            withdraw=partial(_take_out, loaded=loaded),
            step=_told,
            show=lambda key, page: shown.update({key.rsplit("-", 1)[0]: page}),
        )
        found = evolution.run(config, control.connect(config.control_db), agent, reason, work, dry=True)
    return {"state": found.state, "message": found.message, "record": found.record, "pages": shown}


def clean_up(config: Settings) -> list[str]:
    """Remove what runs left that were killed: what they had loaded, and their folders, whose names it gives."""
    for name in policies.abandoned(config):  # before its files go
        _unload(config, name)
    left = [folder for folder in config.var.glob(f"{_PREFIX}*") if not _at_work(folder.name)]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(folder.name for folder in left)


def _at_work(folder: str) -> bool:
    process = folder.removeprefix(_PREFIX).partition("-")[0]
    return process.isdigit() and psutil.pid_exists(int(process))


@contextmanager
def _loading(config: Settings) -> Iterator[set[str]]:
    """Names of what the run has loaded, to be kept up to date; what is left at the end is taken out, come what may."""
    loaded: set[str] = set()
    try:
        yield loaded
    finally:
        for name in sorted(loaded):
            _unload(config, name)


def _serve(config: Settings, manifest: Manifest, made: dict[str, Any], loaded: set[str]) -> None:
    loaded.add(manifest.policy.served_name)
    candidates.serve(config, manifest, made)


def _told(name: str, step: Any, *args: Any) -> Any:
    print(f"{name} …", file=sys.stderr, flush=True)
    return step(*args)


def _train(config: Settings, agent: str, proposal: Proposal, scratch: Path) -> dict[str, Any]:
    try:
        told = recipes.options(config, agent, proposal.content)
        kind = recipes.kind(proposal.content)
        chosen = training.make_training_set(config, agent, kind, repository=scratch / "snapshots")
        trained = training.train(config, agent, chosen, lambda line: None, told, scratch / proposal.name)
    except training.TrainingFailed as error:
        raise evolution.CandidateFailed(str(error)) from error
    result = {k: v for k, v in trained.result.items() if k != "probe"}
    return {"agent": agent, "digest": trained.digest, "path": trained.path, "training_set": chosen.id,
            "probe": trained.result.get("probe"), "result": result}  # fmt: skip


def _take_out(config: Settings, manifest: Manifest, loaded: set[str]) -> None:
    candidates.withdraw(config, manifest)
    if manifest.policy.served_name in loaded:
        loaded.remove(manifest.policy.served_name)
        _unload(config, manifest.policy.served_name)


def _unload(config: Settings, name: str) -> None:
    policies.release(config, name)
    if name not in policies.needed(config, control.connect(config.control_db)):
        client.unload(config, name)


if __name__ == "__main__":
    with ending_when_wrong():
        raise SystemExit(main())
