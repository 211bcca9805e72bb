"""A backup taken while events come in holds a whole deployment, and comes back as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from atdp import chain
from evoplane.settings import Settings
from evoplane.stack import backup
from evoplane.stack.backup import BackupError
from registry import control, keyring, tenants
from services.proxy.reader import open_reader
from services.proxy.store import open_store
from tests.proxy.drafting import event, header


def quiet(_: str) -> None:
    pass


@pytest.fixture
def deployment(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": tmp_path / "var"}})
    config.var.mkdir()
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "acme", train="allow")
    keyring.master_key(config.keys_dir)
    return config


def elsewhere(config: Settings, place: Path) -> Settings:
    return config.model_copy(update={"paths": config.paths.model_copy(update={"var": place})})


async def test_a_backup_under_writes_holds_whole_chains_and_every_event_acknowledged_before(
    deployment: Settings, tmp_path: Path
) -> None:
    store = open_store(deployment)
    await store.start()
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def write() -> None:
        await store.append("acme", [header()])
        number = 0
        while not stop.is_set():
            await store.append("acme", [event(f"e{number}")])
            acknowledged.append(f"e{number}")
            number += 1

    writing = asyncio.create_task(write())
    while len(acknowledged) < 20:
        await asyncio.sleep(0.01)
    before = len(acknowledged)
    await asyncio.to_thread(backup.make, deployment, tmp_path / "copy", with_master_key=True, progress=quiet)
    stop.set()
    await writing
    await store.close()

    back = elsewhere(deployment, tmp_path / "back")
    backup.restore(back, tmp_path / "copy", quiet)
    reader = open_reader(back)
    records = [reader.resolve("acme", r) for r in reader.records("acme", reader.trajectories("acme")[0].trajectory_id)]
    reader.close()
    assert chain.verify(records) == []
    assert {r.get("id") for r in records} >= set(acknowledged[:before])
    assert [t.id for t in tenants.list_tenants(control.connect(back.control_db))] == ["acme"]
    assert keyring.master_key(back.keys_dir) == keyring.master_key(deployment.keys_dir)


def test_a_backup_leaves_the_master_key_out_unless_it_is_asked_for(deployment: Settings, tmp_path: Path) -> None:
    made = backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    assert not made.master_key
    assert not list((tmp_path / "copy").rglob("master.key"))


def test_an_altered_backup_is_refused_and_nothing_is_restored(deployment: Settings, tmp_path: Path) -> None:
    backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    file = tmp_path / "copy" / "control.sqlite"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    back = elsewhere(deployment, tmp_path / "back")
    with pytest.raises(BackupError, match=r"altered, control\.sqlite"):
        backup.restore(back, tmp_path / "copy", quiet)
    assert not back.var.exists()


def test_a_restore_never_goes_over_a_deployment_and_a_backup_never_over_another(
    deployment: Settings, tmp_path: Path
) -> None:
    backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    with pytest.raises(BackupError, match="there is a deployment"):
        backup.restore(deployment, tmp_path / "copy", quiet)
    with pytest.raises(BackupError, match="exists"):
        backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)


@pytest.mark.parametrize("content", [None, b"{", b'{"form": 2}'])
def test_what_is_no_backup_is_named(content: bytes | None, deployment: Settings, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(BackupError):
        backup.check(tmp_path)


@pytest.mark.parametrize("name", ["../planted", "a/../../planted", "/planted", ""])
def test_a_backup_that_names_what_is_not_in_it_writes_nothing(name: str, deployment: Settings, tmp_path: Path) -> None:
    made = backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    (tmp_path / "planted").write_text("x")
    planted = {**made.files, name: backup._entry(tmp_path / "planted")}
    forged = msgspec.structs.replace(made, files=planted)
    (tmp_path / "copy" / backup.MANIFEST).write_bytes(msgspec.json.encode(forged))
    with pytest.raises(BackupError, match="not to be trusted"):
        backup.restore(elsewhere(deployment, tmp_path / "back" / "var"), tmp_path / "copy", quiet)
    assert not (tmp_path / "back").exists()


def test_a_backup_with_a_link_in_it_is_refused(deployment: Settings, tmp_path: Path) -> None:
    backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    (tmp_path / "copy" / "control.sqlite").rename(tmp_path / "elsewhere")
    (tmp_path / "copy" / "control.sqlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackupError, match="not to be trusted"):
        backup.check(tmp_path / "copy")


def test_a_disk_that_is_full_leaves_nothing_that_looks_like_a_deployment(
    deployment: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup.make(deployment, tmp_path / "copy", with_master_key=False, progress=quiet)
    back = elsewhere(deployment, tmp_path / "back")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(backup.shutil, "copy2", full)
        with pytest.raises(BackupError, match="No space left"):
            backup.restore(back, tmp_path / "copy", quiet)
    assert not back.control_db.exists()
    backup.restore(back, tmp_path / "copy", quiet)
    assert [t.id for t in tenants.list_tenants(control.connect(back.control_db))] == ["acme"]
