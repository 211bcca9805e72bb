"""Servers under measurement: each a process of its own, started, asked for its health, measured, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
"""Where `services` and `benchmarks` are imported from."""

_POLL_S = 0.2
_STOP_GRACE_S = 15.0
_MIB = 2**20


class CannotStart(Exception):
    """A server is not there; the message says why."""


@contextmanager
def server(
    command: Sequence[str], port: int, health: str, log: Path, environment: Mapping[str, str], wait_s: float
) -> Iterator[int]:
    """A running server, gone behind the block; gives its process id. Raises `CannotStart`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=log.parent, env=dict(environment), start_new_session=True
            )
        except OSError as error:
            raise CannotStart(f"{command[0]}: {error}") from error
    try:
        _wait(process, f"http://127.0.0.1:{port}{health}", log, wait_s)
        yield process.pid
    finally:
        _stop(process)


def inherited(**more: str) -> dict[str, str]:
    """This process's environment without settings of its own deployment, and with `benchmarks` importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVOPLANE_", "MLFLOW_"))}
    path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    return round(sum(each.memory_info().rss for each in _family(pid)) / _MIB, 1)


def cpu_s(pid: int) -> float:
    """Seconds of computing time that a process and its children have had."""
    return sum(times.user + times.system for times in (each.cpu_times() for each in _family(pid)))


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, wait_s: float) -> None:
    ends = time.monotonic() + wait_s
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise CannotStart(f"ended with status {process.returncode}: {_tail(log)}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(_POLL_S)
    raise CannotStart(f"no answer from {url} after {wait_s:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-400:].strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group: some servers are a parent and its workers."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            return
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
