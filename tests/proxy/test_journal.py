"""What is in the journal is read back as it was, whatever happened to the file, and nobody reads it without the key."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.keyring import TenantKeys
from registry.tenant_policy import TenantPolicy
from services.proxy import journal
from services.proxy.journal import Entry, Journal, journals
from services.proxy.journal_reading import Reading

KEYS = {name: TenantKeys(name, {1: name.encode() * 32}) for name in ("a", "b")}
POLICY = TenantPolicy(retention_days=7)


def written(folder: Path, *jobs: bytes, keys: TenantKeys = KEYS["a"]) -> Path:
    """The file of a journal whose process died with these jobs in it."""
    opened = Journal(folder)
    for job in jobs:
        opened.append(keys, Entry(job, POLICY))
    opened.close()
    (path,) = journals(folder)
    return path


def read(path: Path, keys: dict[str, TenantKeys] = KEYS) -> tuple[list[bytes], bool]:
    """The jobs in a journal, and whether it is damaged."""
    reading = Reading(path.read_bytes(), keys.__getitem__)
    return [entry.job for _, entry in reading], bool(reading.damaged)


def test_what_a_dead_process_left_is_read_back_with_its_tenants_and_policies(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    for name in ("a", "b", "a"):
        opened.append(KEYS[name], Entry(name.encode() * 100, POLICY))
    opened.close()
    (path,) = journals(tmp_path)
    assert [(head.tenant, entry) for head, entry in Reading(path.read_bytes(), KEYS.__getitem__)] == [
        (name, Entry(name.encode() * 100, POLICY)) for name in ("a", "b", "a")
    ]


def test_a_journal_that_was_cleared_holds_nothing_and_goes_with_its_process(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(KEYS["a"], Entry(b"said", POLICY))
    opened.clear()
    (path,) = journals(tmp_path)
    assert not any(path.read_bytes())
    opened.append(KEYS["a"], Entry(b"more", POLICY))
    assert read(path) == ([b"more"], False)
    opened.clear()
    opened.close()
    assert journals(tmp_path) == []


def test_nothing_is_in_the_clear_and_another_key_opens_none_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, b"my password is swordfish" * 9)
    assert b"swordfish" not in path.read_bytes()
    other = TenantKeys("a", {1: b"x" * 32})
    for keys in ({"a": other}, {}):
        reading = Reading(path.read_bytes(), keys.__getitem__)
        assert list(reading) == []
        assert reading.locked


def test_what_an_older_version_of_the_tenants_key_wraps_is_opened_after_a_rotation(tmp_path: Path) -> None:
    path = written(tmp_path, b"said")
    rotated = TenantKeys("a", {**KEYS["a"].versions, 2: b"2" * 32})
    assert read(path, {"a": rotated}) == ([b"said"], False)


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_an_entry_that_was_cut_short_is_dropped_for_nobody_was_told_of_it(
    tmp_path_factory: pytest.TempPathFactory, where: int
) -> None:
    """A disk writes whole sectors, and nothing but zeros was there before."""
    path = written(tmp_path_factory.mktemp("slot"), b"one" * 500, b"two" * 500)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    begins = whole.rindex(b"EPJ1")
    sectors = list(range(begins - begins % 512 + 512, end, 512))
    missing = sectors[where % len(sectors)]
    path.write_bytes(whole[:missing] + bytes(512) + whole[missing + 512 :])
    assert read(path) == ([b"one" * 500], False)


def test_an_entry_of_which_a_process_wrote_the_first_half_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, b"one", b"two")
    whole = path.read_bytes()
    begins, end = whole.rindex(b"EPJ1"), len(whole.rstrip(b"\0"))
    path.write_bytes(whole[: end - 20] + bytes(len(whole) - end + 20))
    assert end - begins < 512
    assert read(path) == ([b"one"], False)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_takes_at_most_its_own_entry_and_is_told(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    jobs = [b"one" * 100, b"two" * 100, b"three" * 100]
    path = written(tmp_path_factory.mktemp("slot"), *jobs)
    data = bytearray(path.read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    data[where % used] ^= 1 << bit
    path.write_bytes(data)
    found, damaged = read(path)
    assert damaged
    assert len(found) == 2
    assert [job for job in jobs if job in found] == found


def test_a_disk_without_room_refuses_and_is_asked_again_only_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = Journal(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            opened.append(KEYS["a"], Entry(b"said", POLICY))
    assert not opened.takes(10)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(journal, "_AGAIN_S", 0.0)
    opened.append(KEYS["a"], Entry(b"said", POLICY))
    assert opened.takes(10)


def test_it_says_when_it_is_full_and_takes_nothing_long(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    assert not opened.takes(journal.MAX_ENTRY_BYTES + 1)
    taken = 0
    while opened.takes(30_000):
        opened.append(KEYS["a"], Entry(bytes(30_000), POLICY))
        taken += 1
    assert opened.full
    assert taken > 10
    opened.clear()
    assert opened.takes(30_000)


def test_two_journals_of_one_slot_are_told_apart_and_read_in_their_order(tmp_path: Path) -> None:
    first = written(tmp_path, b"first")
    opened = Journal(tmp_path)
    opened.append(KEYS["a"], Entry(b"second", POLICY))
    opened.close()
    assert journals(tmp_path)[0] == first
    assert [read(path)[0] for path in journals(tmp_path)] == [[b"first"], [b"second"]]


@settings(max_examples=40)
@given(st.integers(0, 20), st.integers(0, 6))
def test_what_a_machine_that_died_while_it_cleared_left_is_no_damage(
    tmp_path_factory: pytest.TempPathFactory, sectors: int, jobs: int
) -> None:
    path = written(tmp_path_factory.mktemp("slot"), *(os.urandom(700) for _ in range(jobs)), b"")
    data = path.read_bytes()
    path.write_bytes(bytes(512 * sectors) + data[512 * sectors :])
    assert not read(path)[1]


def test_what_one_tenant_still_needs_stays_when_the_others_is_cleared(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    for name in ("a", "b", "b", "a", "b"):
        opened.append(KEYS[name], Entry(name.encode() * 99, POLICY))
    opened.clear(keep={"a"})
    assert opened.tenants == {"a"}
    opened.append(KEYS["b"], Entry(b"more", POLICY))
    (path,) = journals(tmp_path)
    assert read(path) == ([b"a" * 99, b"a" * 99, b"more"], False)
    opened.clear()
    assert not any(path.read_bytes())


def test_a_journal_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(KEYS["a"], Entry(b"said", POLICY))
    (path,) = journals(tmp_path)
    path.unlink()
    opened.append(KEYS["a"], Entry(b"more", POLICY))
    assert [read(path) for path in journals(tmp_path)] == [([b"more"], False)]


def test_a_disk_that_takes_a_piece_at_a_time_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:1000], at))
    path = written(tmp_path, b"one" * 2000)
    assert read(path) == ([b"one" * 2000], False)
