"""The control database under a running gateway: written to, replaced, taken away."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry import control, tenants
from services.router.watcher import POLL_S, ControlWatcher


@pytest.fixture
async def watcher(tmp_path: Path) -> AsyncIterator[ControlWatcher]:
    connection = control.connect(tmp_path / "control.sqlite")
    tenants.create_tenant(connection, "a")
    tenants.create_agent(connection, "support", "m")
    tenants.create_key(connection, "a", "support")
    connection.close()
    watcher = ControlWatcher(tmp_path / "control.sqlite", "m", tmp_path / "keys")
    await watcher.start()
    yield watcher
    await watcher.close()


def _copy(path: Path) -> Path:
    """A backup of the database."""
    to = path.with_name("backup.sqlite")
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()
    return to


async def test_a_database_that_was_put_in_the_place_of_the_open_one_is_read_and_its_revocations_count(
    watcher: ControlWatcher, tmp_path: Path
) -> None:
    path = tmp_path / "control.sqlite"
    _copy(path).replace(path)
    connection = control.connect(path)
    (key,) = tenants.list_keys(connection)
    tenants.revoke_key(connection, key.id)
    await asyncio.sleep(4 * POLL_S)
    assert watcher.picture.keys == {}
    tenants.create_key(connection, "a", "support")
    await asyncio.sleep(4 * POLL_S)
    assert len(watcher.picture.keys) == 1
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    connection.close()


async def test_without_a_database_the_last_picture_stays_grows_old_and_that_is_said_once(
    watcher: ControlWatcher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, away = tmp_path / "control.sqlite", tmp_path / "away.sqlite"
    path.replace(away)
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(6 * POLL_S)
    assert len(watcher.picture.keys) == 1
    assert watcher.age_s > 4 * POLL_S
    assert not path.exists()
    (said,) = [record.message for record in caplog.records if record.name == "services.router.watcher"]
    assert "can't be read: FileNotFoundError" in said
    away.replace(path)
    await asyncio.sleep(3 * POLL_S)
    assert watcher.age_s < 2 * POLL_S


async def test_what_is_no_database_does_not_take_the_picture_away(watcher: ControlWatcher, tmp_path: Path) -> None:
    path, other = tmp_path / "control.sqlite", tmp_path / "other"
    copy = _copy(path)
    other.write_bytes(b"no database" * 100)
    other.replace(path)
    await asyncio.sleep(3 * POLL_S)
    assert len(watcher.picture.keys) == 1
    assert watcher.age_s > POLL_S
    copy.replace(path)
    await asyncio.sleep(3 * POLL_S)
    assert watcher.age_s < 2 * POLL_S
