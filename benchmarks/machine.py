"""What the machine is like while something is measured: how busy others keep it, and what an fsync costs."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import psutil

BUSY_PERCENT = 10.0
"""Of all cores; when others take more than this, times are not to be trusted."""

_PAGE = b"x" * 4096


def busy_percent(seconds: float = 0.5) -> float:
    """How busy all cores are, while nothing of ours runs."""
    return float(psutil.cpu_percent(seconds))


def load_average() -> float:
    """Over the last minute."""
    return round(os.getloadavg()[0], 2)


def fsync_ms(folder: Path, count: int) -> float:
    """The median of `count` times appending 4 KiB to a file and forcing them to the disk."""
    path = folder / "fsync"
    times: list[int] = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(count):
            started = perf_counter_ns()
            os.write(handle, _PAGE)
            os.fdatasync(handle)
            times.append(perf_counter_ns() - started)
    finally:
        os.close(handle)
        path.unlink()
    return median(times) / 1e6
