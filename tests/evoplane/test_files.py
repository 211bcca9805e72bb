"""A file is replaced whole, whoever reads meanwhile and whatever fails; durably where that is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from evoplane import files

Write = Callable[[Path, bytes], None]

WAYS = pytest.mark.parametrize("write", [files.write_whole, files.write_durably])


@WAYS
def test_a_reader_finds_the_old_content_or_the_new(write: Write, tmp_path: Path) -> None:
    file = tmp_path / "made" / "state.json"
    contents = {bytes([65 + n]) * 300_000 for n in range(2)}
    write(file, min(contents))
    seen: set[bytes] = set()
    over = Event()

    def read() -> None:
        while not over.is_set():
            seen.add(file.read_bytes())

    reader = Thread(target=read)
    reader.start()
    for _ in range(20):
        for content in contents:
            write(file, content)
    over.set()
    reader.join()
    assert seen <= contents
    assert [path.name for path in file.parent.iterdir()] == ["state.json"]


@WAYS
def test_what_a_killed_writer_left_behind_is_no_content_and_in_nobodys_way(write: Write, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write(file, b"old")
    die = "import os, sys; from pathlib import Path; from evoplane.files import drafted\n" \
        "with drafted(Path(sys.argv[1])) as draft: draft.write_bytes(b'ne'); os._exit(1)"  # fmt: skip
    subprocess.run([sys.executable, "-c", die, str(file)], check=False)
    assert len(list(tmp_path.iterdir())) == 2 and file.read_bytes() == b"old"
    write(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"] and file.read_bytes() == b"new"


@WAYS
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    write(file, b"old")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write(file, b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_content_is_on_disk_before_its_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append(f"synced {Path(f'/proc/self/fd/{handle}').readlink().name}")
        sync(handle)

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"renamed {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    files.write_durably(tmp_path / "kept" / "state.json", b"new")
    assert done == ["synced state.json.new", "renamed state.json.new", "synced kept"]
