"""The spool gives back what it took, whatever happened to its files meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from services.proxy import spool
from services.proxy.slots import Slots
from services.proxy.spool import Job, Spool, SpoolFull
from tests.proxy.drafting import event


def filled(folder: Path, count: int, segment_bytes: int = spool.SEGMENT_BYTES) -> Spool:
    opened = Spool(folder, segment_bytes=segment_bytes)
    for index in range(count):
        opened.append([Job("a", [event(f"e{index}")])])
    return opened


def drained(opened: Spool, max_jobs: int = 3) -> list[str]:
    found: list[str] = []
    while (batch := opened.read(max_jobs, 10**6)) is not None:
        found += [job.drafts[0].id for job in batch.jobs]  # type: ignore[union-attr]
        opened.drained(batch)
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.jsonl"))


def test_segments_rotate_and_go_once_they_are_drained(tmp_path: Path) -> None:
    opened = filled(tmp_path / "s", 30, segment_bytes=1500)
    sizes = [path.stat().st_size for path in segments(tmp_path / "s")]
    assert len(sizes) > 3
    assert max(sizes) < 2500
    assert drained(opened) == [f"e{index}" for index in range(30)]
    assert segments(tmp_path / "s") == []
    assert opened.empty
    opened.append([Job("a", [event("later")])])
    assert drained(opened) == ["later"]


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_a_frame_cut_short_by_a_crash_is_dropped_and_the_rest_is_there(tmp_path: Path, cut: int) -> None:
    filled(tmp_path / "s", 5).close()
    (path,) = segments(tmp_path / "s")
    os.truncate(path, path.stat().st_size - cut)
    again = Spool(tmp_path / "s")
    again.append([Job("a", [event("after")])])
    assert drained(again) == ["e0", "e1", "e2", "e3", "after"]
    assert not (tmp_path / "s" / "rejected.jsonl").exists()


def test_whatever_bit_flips_costs_one_job_at_most_and_is_reported(tmp_path: Path) -> None:
    filled(tmp_path / "s", 4).close()
    (path,) = segments(tmp_path / "s")
    whole = path.read_bytes()
    aside = tmp_path / "s" / "rejected.jsonl"
    everything = ["e0", "e1", "e2", "e3"]
    for position in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        aside.unlink(missing_ok=True)
        found = drained(Spool(tmp_path / "s"))
        lost = [id for id in everything if id not in found]
        assert found == [id for id in everything if id not in lost]
        assert len(lost) <= 1, position
        at_the_end = lost == ["e3"]  # as good as cut short: without its newline nobody can tell
        assert not lost or at_the_end or aside.exists()


def test_a_spool_that_is_full_says_so_and_takes_again_what_fits_later(tmp_path: Path) -> None:
    opened = Spool(tmp_path / "s", max_bytes=600)
    opened.append([Job("a", [event("e1")])])
    with pytest.raises(SpoolFull):
        opened.append([Job("a", [event("e2", text="x" * 600)])])
    assert drained(opened) == ["e1"]
    opened.append([Job("a", [event("e3")])])
    assert drained(opened) == ["e3"]


def test_a_write_that_failed_half_way_leaves_no_half_frame_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = filled(tmp_path / "s", 2)
    writing, calls = os.write, []

    def full(file: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writing(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        opened.append([Job("a", [event("refused")])])
    monkeypatch.setattr(os, "write", writing)
    opened.append([Job("a", [event("e2")])])
    assert drained(opened) == ["e0", "e1", "e2"]


def test_a_real_full_device_refuses_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Spool(tmp_path / "s")
    opened.probe()
    (tmp_path / "s" / "probe").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        opened.probe()
    opened.probe()


def test_a_slot_is_held_by_one_process_at_a_time_and_found_when_its_holder_is_gone(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 10**6)
    first, second = slots.take(), slots.take()
    second.spool("a").append([Job("a", [event("e1")])])
    assert slots.abandoned() == []
    second.close()
    (found,) = slots.abandoned()
    assert drained(found.waiting()["a"]) == ["e1"]
    found.close()
    assert slots.abandoned() == []
    first.close()


def test_a_spool_whose_folder_is_taken_away_goes_on_without_what_was_in_it(tmp_path: Path) -> None:
    opened = filled(tmp_path / "s", 3)
    shutil.rmtree(tmp_path / "s")
    opened.append([Job("a", [event("later")])])
    assert drained(opened) == ["later"]
    opened.append([Job("a", [event("lost")])])
    shutil.rmtree(tmp_path / "s")
    opened.probe()
    assert drained(opened) == []
    opened.append([Job("a", [event("last")])])
    assert drained(opened) == ["last"]
