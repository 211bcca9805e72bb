"""`kill -9` at every write point: every acknowledged event is there exactly once, none half, restart succeeds."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from services.proxy import faults
from tests.crash.child import Plan
from tests.crash.harness import Run, losses, restart, run
from tests.proxy.postgres_server import database

POINTS = tuple(point for point in get_args(faults.Point) if "journal" not in point)
JOURNALED = (
    *(point for point in get_args(faults.Point) if "journal" in point),
    "before_write",
    "in_write",
    "before_commit",
    "after_commit",
)
"""Points that a job is at that is safe in the journal before it has its place, or when it is about to be."""
_QUICK = ("in_journal_write", "after_journal_sync", "before_commit")
SPOOLED = tuple(point for point in POINTS if "spool" in point or "drained" in point or "segment" in point)
"""Points that are passed only when the log can't be written for a while."""


def plan_for(root: Path, point: str, **where: str) -> Plan:
    if point in SPOOLED:
        return Plan(str(root), lock_from=6, lock_to=40, jobs=18, **where)
    return Plan(str(root), jobs=18, **where)


@pytest.mark.parametrize("point", POINTS)
def test_killed_here_on_sqlite_nothing_acknowledged_is_lost(tmp_path: Path, point: str) -> None:
    plan = plan_for(tmp_path, point)
    killed = run(plan, fault=f"{point}:3")
    assert killed.ended == -9, f"{point} was not passed"
    restart(plan)
    assert not losses(plan, killed.acknowledged).any(), losses(plan, killed.acknowledged)


def journaled_plan(root: Path, point: str, **where: str) -> Plan:
    """Without work for a while, the journal is cleared."""
    clears = "clear" in point
    return Plan(str(root), journaled=True, tasks=1, jobs=5 if clears else 18, pause_s=0.4 * clears, **where)


def killed_with_its_writer(plan: Plan, point: str, hit: int) -> list[Run]:
    """What a gateway said before it died with its writer, there: in what is placed after a crash, after one."""
    if point != "in_journal_replay":
        return [run(plan, fault=f"{point}:{hit}")]
    before = run(plan, fault="after_journal_sync:3")
    return [before, run(msgspec.structs.replace(plan, name="r1"), fault=f"{point}:0")]


@pytest.mark.parametrize(
    "point",
    [point if point in _QUICK else pytest.param(point, marks=pytest.mark.stack) for point in JOURNALED],
)
def test_killed_here_with_its_gateway_nothing_that_was_told_to_be_safe_is_lost(tmp_path: Path, point: str) -> None:
    plan = journaled_plan(tmp_path, point)
    killed = killed_with_its_writer(plan, point, 3)
    assert {each.ended for each in killed} == {-9}, f"{point} was not passed"
    acknowledged = [job for each in killed for job in each.acknowledged]
    assert acknowledged
    restart(plan)
    assert not losses(plan, acknowledged).any(), losses(plan, acknowledged)


@pytest.mark.parametrize(
    "point",
    [
        "after_commit",
        *(pytest.param(p, marks=pytest.mark.stack) for p in ("in_write", "before_commit", "after_drained_commit")),
    ],
)
def test_killed_here_on_postgresql_nothing_acknowledged_is_lost(
    tmp_path: Path, postgres_admin: str, point: str
) -> None:
    with database(postgres_admin, tmp_path) as server:
        plan = plan_for(tmp_path, point, admin=postgres_admin, database=server.database)
        killed = run(plan, fault=f"{point}:3")
        assert killed.ended == -9, f"{point} was not passed"
        restart(plan)
        assert not losses(plan, killed.acknowledged).any(), losses(plan, killed.acknowledged)


@pytest.mark.stack
@pytest.mark.parametrize("point", ["after_journal_sync", "in_journal_replay", "before_commit"])
def test_killed_here_in_front_of_postgresql_nothing_that_was_told_to_be_safe_is_lost(
    tmp_path: Path, postgres_admin: str, point: str
) -> None:
    with database(postgres_admin, tmp_path) as server:
        plan = journaled_plan(tmp_path, point, admin=postgres_admin, database=server.database)
        acknowledged = [job for each in killed_with_its_writer(plan, point, 3) for job in each.acknowledged]
        assert acknowledged
        restart(plan)
        assert not losses(plan, acknowledged).any(), losses(plan, acknowledged)


@pytest.mark.stack
@pytest.mark.parametrize("point", ["before_write", "in_write", "before_commit", "after_commit"])
def test_a_writer_process_killed_here_again_and_again_is_replaced_and_every_job_is_there_once(
    tmp_path: Path, point: str
) -> None:
    plan = Plan(str(tmp_path), jobs=6, apart=True)
    ended = run(plan, fault=f"{point}:3")
    assert ended.finished
    assert ended.restarts > 2
    assert len(ended.acknowledged) == plan.jobs * plan.tasks
    assert not losses(plan, ended.acknowledged).any(), losses(plan, ended.acknowledged)


def test_a_point_that_is_not_wanted_costs_nothing_that_could_be_noticed() -> None:
    import timeit

    assert timeit.timeit(lambda: faults.reach("before_write"), number=10_000) / 10_000 < 5e-6
