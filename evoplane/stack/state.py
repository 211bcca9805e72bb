"""What the supervisor says about itself: one small file, replaced atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import psutil

from evoplane import files
from evoplane.settings import Settings

ComponentState = Literal["starting", "healthy", "unhealthy", "restarting", "stopped"]

TRANSITIONS: dict[ComponentState, frozenset[ComponentState]] = {
    "starting": frozenset({"healthy", "restarting", "stopped"}),
    "healthy": frozenset({"unhealthy", "restarting", "stopped"}),
    "unhealthy": frozenset({"healthy", "restarting", "stopped"}),
    "restarting": frozenset({"starting", "stopped"}),
    "stopped": frozenset(),
}
"""Every legal change of a component's state."""


class ComponentStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ComponentState
    url: str
    pid: int | None = None
    restarts: int = 0
    detail: str = ""


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    supervisor_pid: int
    supervisor_started: float
    """Creation time of the process: a recycled pid is not taken for the supervisor."""
    components: list[ComponentStatus] = []

    def supervisor(self) -> psutil.Process | None:
        """The supervisor's process, if it is alive."""
        try:
            process = psutil.Process(self.supervisor_pid)
            same = abs(process.create_time() - self.supervisor_started) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def state_file(config: Settings) -> Path:
    return config.var / "stack.json"


def read(config: Settings) -> StackState | None:
    """The state as last written; None when nothing was started here (or the file is damaged)."""
    return _read(state_file(config))


def _read(file: Path) -> StackState | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=StackState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def running_below(var: Path) -> list[Path]:
    """Other deployments' directories in this one, such as the demo's, in which a stack runs."""
    found = []
    for file in sorted(var.glob("*/stack.json")):
        state = _read(file)
        if state is not None and state.supervisor() is not None:
            found.append(file.parent)
    return found


def write(config: Settings, state: StackState) -> None:
    files.write_whole(state_file(config), msgspec.json.encode(state))


def status(config: Settings) -> list[ComponentStatus]:
    """Every component's state; all stopped when the supervisor is not alive."""
    state = read(config)
    if state is None:
        return []
    if state.supervisor() is None:
        return [
            msgspec.structs.replace(c, state="stopped", pid=None, detail="the supervisor is gone")
            for c in state.components
        ]
    return state.components
