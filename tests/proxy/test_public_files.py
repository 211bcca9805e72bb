"""Every public file of a known format goes into the store, verifies, and comes back with the stated losses only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from atdp import convert
from atdp.canonical import canonical
from services.proxy import importing
from services.proxy.exporting import Selection
from services.proxy.store import EventStore, StoreReader
from tests.atdp.test_shared_files import CASES, rows, without_losses
from tests.shared import DATA, REASON

pytestmark = [
    pytest.mark.skipif(not DATA.exists(), reason=REASON),
    pytest.mark.stack,  # half a minute of disk; the conversions themselves are in tests/atdp
]

_LINES = ("tensorzero", "judge-verdicts")
"""Formats whose files speak of each other: they share a tenant."""
_EPISODES = [path for path, name in CASES if name == "tensorzero"]
GROUPS: list[tuple[str, list[Path]]] = [
    *((name, [path]) for path, name in CASES if name not in _LINES),
    *([("tensorzero", _EPISODES)] if _EPISODES else []),
]


async def _import(root: Path, sources: list[tuple[str, Path]]) -> tuple[importing.Imported, list[convert.LossReport]]:
    store = EventStore(root)
    await store.start()
    job = importing.Import(store, "acme", "a", "allow")
    losses = []
    for name, path in sources:
        with path.open("rb") as source:
            converted = convert.get(name).read(source, convert.ReadOptions("a", path.name))
            await job.take(converted.records)
        losses.append(converted.loss)
    done = await job.finish()
    await store.close()
    return done, losses


def _export(reader: StoreReader, name: str) -> bytes:
    selection = Selection(reader, ["acme"], None, None, "debug")
    return convert.get(name).write(selection.records(whole=True), selection.content).data


def _verified(reader: StoreReader) -> bool:
    return all(reader.verify("acme", row.trajectory_id) == [] for row in reader.trajectories("acme"))


def _alike(found: Any) -> list[bytes]:
    return sorted(map(canonical, found))


@pytest.mark.parametrize(("name", "paths"), GROUPS, ids=[f"{n}-{p[0].name[-30:]}" for n, p in GROUPS])
async def test_a_public_file_comes_back_from_the_store(name: str, paths: list[Path], tmp_path: Path) -> None:
    done, losses = await _import(tmp_path, [(name, path) for path in paths])
    reader = StoreReader(tmp_path)
    assert (done.refused, done.waiting, _verified(reader)) == ([], 0, True)
    exported = _export(reader, name)
    if name == "tensorzero":  # one id may carry verdicts by two metrics
        given = [row for path in paths for row in _rows(path.read_bytes())]
        assert _alike(_rows(exported)) == _alike(given)
        return
    assert rows(exported, name) == without_losses(rows(paths[0].read_bytes(), name), losses[0])


async def test_verdicts_come_back_from_the_runs_they_are_about(tmp_path: Path) -> None:
    runs = DATA / "tau2-airline" / "gpt-4o_airline.json"
    verdicts = [path for path, name in CASES if name == "judge-verdicts"]
    done, _ = await _import(tmp_path, [*(("judge-verdicts", path) for path in verdicts), ("tau2-bench", runs)])
    assert (done.refused, done.waiting) == ([], 0)
    exported = [orjson.loads(line) for line in _export(StoreReader(tmp_path), "judge-verdicts").splitlines()]
    given = [orjson.loads(line) for path in verdicts for line in path.read_bytes().splitlines()]
    assert _alike(_said(exported)) == _alike(_said(given))


def _rows(data: bytes) -> list[Any]:
    return [row for line in data.splitlines() for row in rows(line, "tensorzero").values()]


def _said(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if value is not None} for row in found]
