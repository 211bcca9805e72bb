"""judging: what a model makes of an agent's recent answers, told to the gateway as signals.

    python -m flows.judging AGENT [LIMIT]

Every answer is judged once by one judge (model, constitution, wording). Verdicts are never optimised as they are, and
count as reward only where the agent's rule says so (`min_agreement`, docs/rewards.md).
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dashboards.reading import read_cases
from evaluators.cases import Case
from evaluators.judges.constitution import DEFAULT, Constitution, read_constitution
from evaluators.judges.endpoint import endpoint
from evaluators.judges.feedback import ruling_signals, source
from evaluators.judges.judging import Ask, judge, shown
from evaluators.judges.verdicts import Verdict
from evaluators.rewards.posting import post
from evoplane.settings import Settings, ending_when_wrong, settings
from flows import environment  # noqa: F401  (before prefect)
from registry import control, pointers, tenants

from prefect import flow  # isort: skip
from prefect.artifacts import create_table_artifact  # isort: skip
from prefect.states import Completed, Failed  # isort: skip


class Told(msgspec.Struct, frozen=True):
    """What one run did."""

    judged: int
    passed: int
    failed: int
    abstained: int
    told: int
    """Signals that the gateway has; abstentions are none."""


@flow(name="judging", flow_run_name="judge {agent}", log_prints=True)
def judging(agent: str, limit: int = 100) -> Told:
    """Judge the agent's answers in its newest trajectories, at most `limit` a tenant."""
    config = settings()
    told = judge_agent(config, agent, limit, endpoint(config.judge))
    create_table_artifact(key=f"judging-{agent}", table=[msgspec.to_builtins(told)], description=config.judge.model)
    return told


@flow(name="judging-all", flow_run_name="scheduled judging", log_prints=True)
def judging_all(limit: int = 100) -> Any:
    """Judge every agent that serves a version. One whose verdicts can't be had or told doesn't stop the others."""
    config = settings()
    lines, failed = [], False
    for agent in sorted(pointers.all_routes(control.connect(config.control_db))):
        try:
            told = judge_agent(config, agent, limit, endpoint(config.judge))
            lines.append(f"{agent}: {told.judged} judged, {told.passed} passed, {told.abstained} abstained")
        except Exception as error:  # the judge, the gateway or what lies between; said in the run's state
            lines.append(f"{agent}: {type(error).__name__}: {error}")
            failed = True
    message = "; ".join(lines) or "no agent serves a version yet"
    return Failed(message=message) if failed else Completed(message=message)


def judge_agent(config: Settings, agent: str, limit: int, ask: Ask) -> Told:
    """Judge what this judge has not judged yet, and post the verdicts; raises `NotTaken` when the gateway refuses."""
    by = read_constitution(_constitution_file(config))
    fresh = [c for c in read_cases(config, agent, limit) if c.status == "ok" and not _judged(c, config, by)]
    verdicts = asyncio.run(_judge_all(config, fresh, by, ask))
    signals: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case, verdict in zip(fresh, verdicts, strict=True):
        signals[case.tenant] += ruling_signals(case.event_id, verdict, config.judge.model, by)
    for tenant, mine in signals.items():
        with feedback_key(config, tenant, agent) as key:
            post(config.gateway_url, key, mine)
    rulings = [v.ruling for v in verdicts]
    return Told(
        judged=len(fresh),
        passed=rulings.count("pass"),
        failed=rulings.count("fail"),
        abstained=rulings.count("abstain"),
        told=sum(map(len, signals.values())),
    )


@contextmanager
def feedback_key(config: Settings, tenant: str, agent: str) -> Iterator[str]:
    """A key of the tenant that exists only inside the block."""
    connection = control.connect(config.control_db)
    key, secret = tenants.create_key(connection, tenant, agent, "serve", owner="judging")
    try:
        yield secret
    finally:
        tenants.revoke_key(connection, key.id)


async def _judge_all(config: Settings, cases: Sequence[Case], by: Constitution, ask: Ask) -> list[Verdict]:
    told = [shown(case, config.judge.max_chars) for case in cases]
    return list(
        await asyncio.gather(*(judge(ask, conversation, reply, by, config.judge.votes) for conversation, reply in told))
    )


def _judged(case: Case, config: Settings, by: Constitution) -> bool:
    version = source(config.judge.model, by)["version"]
    return any(
        s.source_id == config.judge.model and s.source_version == version and case.event_id in s.events
        for s in case.signals
    )


def _constitution_file(config: Settings) -> Path:
    return Path(config.judge.constitution) if config.judge.constitution else DEFAULT


def main() -> None:
    # before anything is asked of Prefect: a typing error is no run that failed
    parser = argparse.ArgumentParser(prog="python -m flows.judging", description=judging.__doc__)
    parser.add_argument("agent")
    parser.add_argument(
        "limit", nargs="?", type=int, default=100, help="newest trajectories a tenant (default: %(default)s)"
    )
    told = parser.parse_args()
    print(judging(told.agent, told.limit))


if __name__ == "__main__":
    with ending_when_wrong():
        main()
