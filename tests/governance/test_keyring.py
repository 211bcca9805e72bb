from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from registry import audit, control, keyring, tenants
from registry.keyring import KeyringError

MASTER = b"m" * 32


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    connection = control.connect(tmp_path / "control.sqlite")
    for tenant in ("a", "b"):
        tenants.create_tenant(connection, tenant)
        keyring.ensure(connection, MASTER, tenant)
    return connection


def test_the_master_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    first = keyring.master_key(tmp_path / "keys", {})
    assert keyring.master_key(tmp_path / "keys", {}) == first
    assert (tmp_path / "keys" / "master.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "keys" / "master.key").chmod(0o644)
    with pytest.raises(KeyringError, match="chmod 600"):
        keyring.master_key(tmp_path / "keys", {})


def test_the_variable_goes_before_the_file_and_must_hold_a_key(tmp_path: Path) -> None:
    assert keyring.master_key(tmp_path, {"EVOPLANE_MASTER_KEY": "61" * 32}) == b"a" * 32
    assert not list(tmp_path.iterdir())
    for wrong in ("short", "YWJj", "é"):
        with pytest.raises(KeyringError):
            keyring.master_key(tmp_path, {"EVOPLANE_MASTER_KEY": wrong})


def test_no_key_is_in_the_database_in_the_clear(connection: sqlite3.Connection) -> None:
    keys = keyring.load(connection, MASTER)
    dump = "\n".join(connection.iterdump()).lower()
    assert keys["a"].versions[1].hex() not in dump
    assert keys["a"].versions != keys["b"].versions
    assert "61616161" not in repr(keys["a"])


def test_another_master_key_opens_nothing_and_says_so(connection: sqlite3.Connection) -> None:
    with pytest.raises(KeyringError, match="restore the one"):
        keyring.load(connection, b"x" * 32)


def test_after_a_rotation_old_data_keys_open_new_ones_use_the_new_version_and_pseudonyms_stay(
    connection: sqlite3.Connection,
) -> None:
    before = keyring.load(connection, MASTER)["a"]
    version, wrapped = before.wrap("t1", b"d" * 32)
    assert keyring.rotate(connection, MASTER, "a", "test") == 2
    after = keyring.load(connection, MASTER)["a"]
    assert after.unwrap("t1", version, wrapped) == b"d" * 32
    assert after.wrap("t1", b"e" * 32)[0] == 2
    assert after.unwrap("t1", 2, after.rewrap("t1", version, wrapped)) == b"d" * 32
    assert (after.pseudonyms, after.links) == (before.pseudonyms, before.links)
    assert audit.entries(connection, "a")[-1].action == "tenant.key.rotate"


def test_a_wrapped_key_opens_only_for_its_trajectory_and_tenant(connection: sqlite3.Connection) -> None:
    keys = keyring.load(connection, MASTER)
    version, wrapped = keys["a"].wrap("t1", b"d" * 32)
    for other, trajectory in ((keys["a"], "t2"), (keys["b"], "t1")):
        with pytest.raises(KeyringError):
            other.unwrap(trajectory, version, wrapped)
    with pytest.raises(KeyringError, match="no key version 9"):
        keys["a"].unwrap("t1", 9, wrapped)


def test_derived_keys_differ_by_purpose_and_tenant(connection: sqlite3.Connection) -> None:
    keys = keyring.load(connection, MASTER)
    assert len({keys["a"].pseudonyms, keys["a"].links, keys["b"].pseudonyms, keys["a"].versions[1]}) == 4
