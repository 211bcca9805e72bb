"""What became of trajectories sent to the operator's collector: counted by who sends them, shown in `/metrics`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from evoplane import files


class Counts(msgspec.Struct):
    """Trajectories, since the deployment began."""

    taken: int = 0
    refused: int = 0
    """Dropped: the collector said that it will never take them."""


def read(var: Path) -> Counts:
    """Nothing was counted yet where there is no file, or half a one."""
    try:
        return msgspec.json.decode(_file(var).read_bytes(), type=Counts)
    except (FileNotFoundError, msgspec.DecodeError):
        return Counts()


def write(var: Path, counts: Counts) -> None:
    """For the one process that sends."""
    files.write_whole(_file(var), msgspec.json.encode(counts))


def _file(var: Path) -> Path:
    return var / "traces" / "_counts.json"  # beside files that have agents' names
