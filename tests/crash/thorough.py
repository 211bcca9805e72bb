"""`make crash`: hundreds of kills, and the figures that `docs/reliability.md` shows.

`python -m tests.crash.thorough [--rounds N]`. Exit status 1 when anything was lost.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.crash.child import Plan
from tests.crash.harness import ROOT, Losses, Run, losses, restart, run
from tests.crash.test_kill_points import JOURNALED, POINTS, journaled_plan, killed_with_its_writer, plan_for
from tests.proxy.backends import Postgres
from tests.proxy.postgres_server import PostgresServer, database, postgres_server

PAGE = ROOT / "docs" / "reliability.md"

_TABLE = re.compile(r"(<!-- make crash -->\n).*?(<!-- end -->)", re.DOTALL)


class Figure(msgspec.Struct):
    """One line of the table."""

    what: str
    database: str
    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    halves: int = 0
    broken_chains: int = 0
    slowest_restart_s: float = 0.0
    peak_mib: float = 0.0

    @property
    def clean(self) -> bool:
        return self.lost == self.twice == self.halves == self.broken_chains == 0

    def count(self, found: Losses) -> None:
        self.lost += len(found.missing)
        self.twice += len(found.twice)
        self.halves += len(found.halves)
        self.broken_chains += len(found.broken) + len(found.left_in_spool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="kills at random moments, each database")
    parser.add_argument("--hits", type=int, default=4, help="kills at each write point, each database")
    parser.add_argument("--away", type=float, default=60.0, help="seconds that PostgreSQL is away")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # everything that could be said about failing is provoked here
    figures: list[Figure] = []
    with postgres_server() as server:
        for name in ("sqlite", "postgres"):
            for measure in (
                lambda place: write_points(place, options.hits),
                lambda place: journaled(place, options.hits),
                lambda place: random_moments(place, options.rounds),
                two_processes,
                clock_backwards,
                spool_and_memory,
            ):
                figures.append(_taken(measure, name, server))
        figures.append(_taken(lambda place: writers(place, options.hits), "sqlite", server))
        figures.append(_taken(lambda place: away(place, server, options.away), "postgres", server))
    table = _render(figures)
    print(table)
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page))
    sys.exit(0 if all(figure.clean for figure in figures) else 1)


class _Place:
    """Where one measurement happens: a fresh directory, and a fresh database on PostgreSQL."""

    def __init__(self, database: str, server: PostgresServer) -> None:
        self.database = database
        self._server = server

    @contextmanager
    def plan(self, **more: object) -> Iterator[Plan]:
        with tempfile.TemporaryDirectory() as folder:
            if self.database == "sqlite":
                yield Plan(folder, **more)  # type: ignore[arg-type]
                return
            with database(self._server.admin, Path(folder)) as opened:
                assert isinstance(opened, Postgres)
                yield Plan(folder, admin=opened.admin, database=opened.database, **more)  # type: ignore[arg-type]


def _taken(measure: Callable[[_Place], Figure], name: str, server: PostgresServer) -> Figure:
    figure = measure(_Place(name, server))
    print(msgspec.json.encode(figure).decode(), file=sys.stderr, flush=True)
    return figure


def write_points(place: _Place, hits: int) -> Figure:
    """A kill at every write point, at several of its passings."""
    figure = Figure(f"`kill -9` at each of {len(POINTS)} write points", place.database)
    for point in POINTS:
        for hit in range(hits):
            with place.plan() as base:
                plan = plan_for(Path(base.root), point, admin=base.admin, database=base.database)
                killed = run(plan, fault=f"{point}:{hit}")
                _after(figure, plan, killed, killed.acknowledged)
    return figure


def writers(place: _Place, hits: int) -> Figure:
    """The process that writes is killed again and again, as its gateway goes on."""
    figure = Figure("the writer's process is killed at a write point, and each that takes its place", place.database)
    for point in ("before_write", "in_write", "before_commit", "after_commit"):
        for hit in range(1, hits + 1):
            with place.plan(apart=True) as plan:
                ended = run(plan, fault=f"{point}:{hit}")
                assert ended.finished
                figure.kills += ended.restarts
                _after(figure, plan, ended, ended.acknowledged)
    return figure


def journaled(place: _Place, hits: int) -> Figure:
    """A gateway dies with its writer, where what it was told is safe has no place yet, or is about to be forgotten."""
    figure = Figure(f"`kill -9` of both at {len(JOURNALED)} points of what is safe in the journal", place.database)
    for point in JOURNALED:
        for hit in range(hits):
            with place.plan() as base:
                plan = journaled_plan(Path(base.root), point, admin=base.admin, database=base.database)
                killed = killed_with_its_writer(plan, point, hit)
                figure.kills += sum(each.ended == -9 for each in killed[:-1])
                _after(figure, plan, killed[-1], [job for each in killed for job in each.acknowledged])
    return figure


def random_moments(place: _Place, rounds: int) -> Figure:
    """Kills at random moments of one growing log; half of them while a spool fills or drains."""
    figure = Figure("`kill -9` at random moments of one growing log", place.database)
    chance = random.Random(5)
    acknowledged: list[tuple[str, str]] = []
    with place.plan() as base:
        for number in range(rounds):
            lock = (chance.randrange(80), 0) if number % 2 else (-1, -1)
            plan = msgspec.structs.replace(
                base, name=f"r{number}", jobs=100_000, lock_from=lock[0], lock_to=lock[0] + 80 if lock[0] >= 0 else -1
            )
            killed = run(plan, kill_after_s=chance.uniform(0.0, 0.6))
            figure.kills += 1
            acknowledged += killed.acknowledged
        _after(figure, base, None, acknowledged)
    return figure


def two_processes(place: _Place) -> Figure:
    """Two writers in one place, one of them killed and started again."""
    figure = Figure("two processes in one place, one killed again and again", place.database)
    with place.plan() as base:
        done: list[Run] = []
        left = msgspec.structs.replace(base, name="left", jobs=400)
        thread = threading.Thread(target=lambda: done.append(run(left)))
        thread.start()
        for number in range(6):
            right = msgspec.structs.replace(base, name=f"right{number}", jobs=100_000)
            killed = run(right, kill_after_s=0.2)
            figure.kills += 1
            done.append(killed)
        thread.join()
        _after(figure, base, None, [item for each in done for item in each.acknowledged])
    return figure


def clock_backwards(place: _Place) -> Figure:
    """The wall clock goes back an hour every 5 ms."""
    figure = Figure("the clock goes back an hour, every 5 ms", place.database)
    with place.plan(jobs=200, clock_back=True) as plan:
        written = run(plan)
        assert written.finished
        _after(figure, plan, written, written.acknowledged)
    return figure


def spool_and_memory(place: _Place) -> Figure:
    """Tens of megabytes go into the spool and out again."""
    figure = Figure("the log is locked while 3,000 jobs arrive", place.database)
    with place.plan(jobs=400, tasks=8, lock_from=0, lock_to=3000, segment_bytes=8 * 2**20) as plan:
        written = run(plan)
        assert written.finished
        _after(figure, plan, written, written.acknowledged)
    return figure


def away(place: _Place, server: PostgresServer, seconds: float) -> Figure:
    """The server dies, and comes back."""
    figure = Figure(f"the server is killed and away for {seconds:.0f} s", place.database)
    with place.plan(jobs=int(seconds * 40) + 100, pause_s=0.02) as plan:
        done: list[Run] = []
        thread = threading.Thread(target=lambda: done.append(run(plan)))
        thread.start()
        time.sleep(2)
        server.kill()
        time.sleep(seconds)
        server.start()
        thread.join()
        assert done[0].finished
        _after(figure, plan, done[0], done[0].acknowledged)
    return figure


def _after(figure: Figure, plan: Plan, ended: Run | None, acknowledged: list[tuple[str, str]]) -> None:
    """Start again, and count."""
    started = time.monotonic()
    restart(plan)
    figure.slowest_restart_s = max(figure.slowest_restart_s, time.monotonic() - started)
    figure.kills += ended is not None and ended.ended == -9
    figure.acknowledged += len(acknowledged)
    figure.peak_mib = max(figure.peak_mib, (ended.peak_kib if ended is not None else 0) / 1024)
    figure.count(losses(plan, acknowledged))


def _render(figures: list[Figure]) -> str:
    lines = [
        f"`make crash` of {datetime.now(UTC):%Y-%m-%d}:",
        "",
        "| what happens | database | kills | jobs acknowledged | lost | twice | halves | broken chains "
        "| slowest restart | peak RSS |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for f in figures:
        peak = f"{f.peak_mib:.0f} MiB" if f.peak_mib else "–"
        lines.append(
            f"| {f.what} | {f.database} | {f.kills} | {f.acknowledged:,} | {f.lost} | {f.twice} | {f.halves} "
            f"| {f.broken_chains} | {f.slowest_restart_s:.1f} s | {peak} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
