"""Looking without acting: `python -m flows.dry_run diagnose|evolve --agent A` prints JSON.

What `evoplane diagnose` and `evoplane evolve --dry-run` start. Candidates are made, trained and replayed as in an
evolution; nothing is registered, recorded or delivered, and what was loaded is taken out again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from dashboards.reading import CaseReader
from evaluators import diagnosis
from evoplane.settings import Settings, settings
from flows import candidates, evolution, locks, pages, policies, training
from flows.interventions import Proposal
from registry import control, pointers
from registry.manifest import Manifest
from registry.tenants import RegistryError
from services.proxy.store import open_reader
from services.worker import client


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.dry_run", description=__doc__)
    parser.add_argument("what", choices=("diagnose", "evolve"))
    parser.add_argument("--agent", required=True)
    parser.add_argument("--reason", default="a dry run")
    given = parser.parse_args(arguments)
    config = settings()
    try:
        found = diagnose(config, given.agent) if given.what == "diagnose" else evolve(config, given.agent, given.reason)
    except (RegistryError, locks.Busy) as error:
        print(f"{given.agent}: {error}", file=sys.stderr)
        return 1
    json.dump(pages.finite(found), sys.stdout)
    return 0


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
    work = evolution.Work(
        snapshot=candidates.taken,
        quality=candidates.quality,
        answer=candidates.answer,
        train=_train,
        serve=candidates.serve,
        withdraw=_take_out,
        step=_told,
        show=lambda key, page: shown.update({key.rsplit("-", 1)[0]: page}),
    )
    found = evolution.run(config, control.connect(config.control_db), agent, reason, work, dry=True)
    return {"state": found.state, "message": found.message, "record": found.record, "pages": shown}


def _told(name: str, step: Any, *args: Any) -> Any:
    print(f"{name} …", file=sys.stderr, flush=True)
    return step(*args)


def _train(config: Settings, agent: str, proposal: Proposal) -> dict[str, Any]:
    try:
        chosen = training.make_training_set(config, agent)
        trained = training.train(config, agent, chosen, lambda line: None)
    except training.TrainingFailed as error:
        raise evolution.CandidateFailed(str(error)) from error
    result = {k: v for k, v in trained.result.items() if k != "probe"}
    return {"agent": agent, "digest": trained.digest, "path": trained.path, "training_set": chosen.id,
            "probe": trained.result.get("probe"), "result": result}  # fmt: skip


def _take_out(config: Settings, manifest: Manifest) -> None:
    candidates.withdraw(config, manifest)
    if manifest.policy.served_name not in policies.needed(config, control.connect(config.control_db)):
        client.unload(config, manifest.policy.served_name)


if __name__ == "__main__":
    raise SystemExit(main())
