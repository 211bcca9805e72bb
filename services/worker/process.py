"""Child processes that can't outlive their parent.

A child leads its own session, so that it and all it starts can be signalled together, and the kernel
sends it SIGTERM when its parent dies, however that happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def start(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` with its output appended to `log`. Call from a thread that lives as long as the
    child should: the kernel's notice goes by thread."""
    log.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()

    def tie_to_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the line above
            os.kill(os.getpid(), signal.SIGTERM)

    with log.open("ab") as stream:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie_to_parent,
        )


def stop(process: subprocess.Popen[bytes], grace_s: float = 15.0) -> None:
    """Stop a child and its descendants: SIGTERM first, SIGKILL for what is left after `grace_s`."""
    family = _descendants(process.pid)
    _signal_session(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    end(family, grace_s=1.0)
    _signal_session(process.pid, signal.SIGKILL)
    process.wait()


def end(processes: Sequence[psutil.Process], grace_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL, for those of `processes` that still run."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            try:
                process.send_signal(signal_number)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(list(processes), timeout=grace_s)
        if not processes:
            return


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return "(no log)"
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 32_768))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-lines:])


class Backoff:
    """Waiting times before restarts: 1, 2, 4 … `cap_s` seconds; a child that ran `stable_s` starts over."""

    def __init__(self, cap_s: float = 30.0, stable_s: float = 60.0) -> None:
        self._cap_s = cap_s
        self._stable_s = stable_s
        self._failures = 0
        self._started = time.monotonic()

    def started(self) -> None:
        self._started = time.monotonic()

    def next_wait_s(self) -> float:
        if time.monotonic() - self._started >= self._stable_s:
            self._failures = 0
        self._failures += 1
        return min(self._cap_s, 2.0 ** (self._failures - 1))


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal_session(pid: int, signal_number: signal.Signals) -> None:
    try:
        os.killpg(pid, signal_number)
    except ProcessLookupError:
        return
