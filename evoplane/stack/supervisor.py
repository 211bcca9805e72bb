"""Start the stack, keep it running, stop it cleanly.

One supervisor process owns every component: it starts them in parallel, asks each for its health,
restarts what dies (waiting longer each time), and stops all of them when it is asked to stop or dies
itself. `up` and `down` are what the command line calls.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from evoplane.settings import Settings
from evoplane.stack import state
from evoplane.stack.components import Component, components
from evoplane.stack.environment import MARK, environment, mark
from evoplane.stack.state import TRANSITIONS, ComponentState, ComponentStatus, StackState
from services.proxy.migrations.run import migrate_deployment
from services.worker import process

START_TIMEOUT_S = 600.0
"""A cold start of everything costs two cores about two minutes of CPU time; slow disks need more."""
_HEALTH_EVERY_S = {"starting": 0.5, "healthy": 5.0, "unhealthy": 1.0}
"""Seconds between health questions, by state."""
_UNHEALTHY_AFTER = 3
"""Failed health questions in a row before a running component counts as unhealthy."""
_STOP_GRACE_S = 40.0
_MAX_EARLY_DEATHS = 3
"""Deaths before ever being healthy after which `up` gives up instead of waiting."""

Progress = Callable[[str], None]


class StackError(OSError):
    """The stack could not be started; the message says what to do."""


class _Runner:
    """One component's process and state. All methods run on the supervisor's only thread but `ask`."""

    def __init__(self, component: Component, config: Settings):
        self.component = component
        self._log = config.logs_dir / f"{component.name}.log"
        self._env = {**environment(config), **component.env}
        self._backoff = process.Backoff()
        self._child: subprocess.Popen[bytes] | None = None
        self._restart_at = 0.0
        self._failures = 0
        self.status = ComponentStatus(name=component.name, state="restarting", url=component.url)

    def tick(self) -> None:
        """Look at the process and do what its state calls for."""
        if self.status.state == "restarting":
            if time.monotonic() >= self._restart_at:
                self._start()
            return
        assert self._child is not None
        code = self._child.poll()
        if code is not None:
            process.stop(self._child, grace_s=1.0)  # whatever it left behind in its session
            self._start_later(f"ended with status {code}")

    def ask(self) -> None:
        """Ask for health and note the answer."""
        if self.status.state not in ("starting", "healthy", "unhealthy"):
            return
        if self.component.healthy():
            self._failures = 0
            if self.status.state != "healthy":
                self._move("healthy", detail="")
        elif self.status.state == "healthy":
            self._failures += 1
            if self._failures >= _UNHEALTHY_AFTER:
                self._move("unhealthy", detail=f"does not answer, see {self._log}")

    def stop(self) -> None:
        if self._child is not None:
            process.stop(self._child, grace_s=_STOP_GRACE_S)
        self._move("stopped", pid=None)

    def _start(self) -> None:
        self._backoff.started()
        self._failures = 0
        try:
            self._child = process.start(self.component.command, env=self._env, log=self._log)
        except OSError as error:  # no process to be had, no room for its log: no reason to stop the others
            self._child = None
            self._start_later(f"can't be started ({error})")
            return
        self._move("starting", pid=self._child.pid)

    def _start_later(self, why: str) -> None:
        wait_s = self._backoff.next_wait_s()
        self._restart_at = time.monotonic() + wait_s
        detail = f"{why}; starting again in {wait_s:.0f} s, see {self._log}"
        self._move("restarting", pid=None, restarts=self.status.restarts + 1, detail=detail)

    def _move(self, to: ComponentState, **fields: object) -> None:
        if to != self.status.state and to not in TRANSITIONS[self.status.state]:
            raise AssertionError(f"{self.component.name}: {self.status.state} → {to} is not a legal transition")
        self.status = msgspec.structs.replace(self.status, state=to, **fields)


def supervise(config: Settings, only: Sequence[str] | None = None) -> None:
    """Run the stack in this process until SIGTERM or SIGINT."""
    me = psutil.Process()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    runners = [_Runner(component, config) for component in _chosen(config, only)]

    def publish() -> list[ComponentStatus]:
        statuses = [runner.status for runner in runners]
        state.write(config, StackState(supervisor_pid=me.pid, supervisor_started=me.create_time(), components=statuses))
        return statuses

    published = publish()
    watchers = [threading.Thread(target=_watch, args=(runner, stopping), daemon=True) for runner in runners]
    try:
        for runner in runners:
            runner.tick()
        for watcher in watchers:
            watcher.start()
        while not stopping.wait(0.25):
            for runner in runners:
                runner.tick()
            if [runner.status for runner in runners] != published:
                published = publish()
    finally:
        stopping.set()
        for watcher in watchers:
            watcher.join(timeout=10)
        stops = [threading.Thread(target=runner.stop) for runner in runners]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        publish()


def up(
    config: Settings,
    only: Sequence[str] | None = None,
    detach: bool = True,
    progress: Progress | None = None,
) -> None:
    """Start the stack unless it runs already. Detached, returns when every component is healthy.

    Raises `StackError` when a port is taken, when a component keeps dying, or when the stack runs without one that is
    wanted.
    """
    say = progress or (lambda _: None)
    known = state.read(config)
    if known is not None and known.supervisor() is not None:
        running = {component.name for component in known.components}
        absent = [component.name for component in _chosen(config, only) if component.name not in running]
        if absent:
            raise StackError(
                f"the stack runs already, without {', '.join(absent)}: `evoplane down`, then `evoplane up` "
                "(with `--only`: once for each component that is wanted)"
            )
        say("the stack is running already")
        _wait_until_healthy(config, say)
        return
    _sweep(config)
    _require_ports(_chosen(config, only))
    migrate_deployment(config)
    if not detach:
        supervise(config, only)
        return
    config.logs_dir.mkdir(parents=True, exist_ok=True)
    state.state_file(config).unlink(missing_ok=True)
    with (config.logs_dir / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "evoplane.stack", *(only or ())],
            env=environment(config),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(config, say, supervisor)
    except BaseException:
        down(config)
        raise


def down(config: Settings) -> bool:
    """Stop the stack and everything that belongs to it; False when nothing of it ran."""
    known = state.read(config)
    supervisor = known.supervisor() if known else None
    if supervisor is not None:
        supervisor.terminate()
        try:
            supervisor.wait(timeout=_STOP_GRACE_S + 20)
        except psutil.TimeoutExpired:
            supervisor.kill()
    return _sweep(config) or supervisor is not None


def _watch(runner: _Runner, stopping: threading.Event) -> None:
    while not stopping.wait(_HEALTH_EVERY_S.get(runner.status.state, 0.5)):
        runner.ask()


def _chosen(config: Settings, only: Sequence[str] | None) -> list[Component]:
    known = components(config)
    unknown = set(only or ()) - {component.name for component in known}
    if unknown:
        raise StackError(f"no component {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in known)}")
    return [component for component in known if not only or component.name in only]


def _wait_until_healthy(config: Settings, say: Progress, supervisor: subprocess.Popen[bytes] | None = None) -> None:
    started = time.monotonic()
    told: dict[str, str] = {}
    while time.monotonic() - started < START_TIMEOUT_S:
        if supervisor is not None and supervisor.poll() is not None:
            tail = process.tail(config.logs_dir / "supervisor.log")
            raise StackError(f"the supervisor ended with status {supervisor.returncode}:\n{tail}")
        statuses = state.status(config)
        for status in statuses:
            if told.get(status.name, "restarting") != status.state and status.state != "starting":
                told[status.name] = status.state
                say(f"  {status.name}: {status.state} {status.url or ''} {status.detail}".rstrip())
            if status.restarts >= _MAX_EARLY_DEATHS and status.state == "restarting":
                log = config.logs_dir / f"{status.name}.log"
                raise StackError(f"{status.name} keeps dying ({status.detail}):\n{process.tail(log)}")
        if statuses and all(status.state == "healthy" for status in statuses):
            return
        time.sleep(0.25)
    late = ", ".join(s.name for s in state.status(config) if s.state != "healthy")
    raise StackError(f"not healthy after {START_TIMEOUT_S:.0f} s: {late}; see {config.logs_dir}")


def _require_ports(wanted: Sequence[Component]) -> None:
    listening = {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    for component in wanted:
        for setting, port in component.ports.items():
            if port in listening:
                raise StackError(
                    f"port {port} ({setting}) is taken by {_name(listening[port])}: stop it, or set {setting} "
                    f"in evoplane.toml (or EVOPLANE_{setting.upper().replace('.', '__')})"
                )


def _name(pid: int | None) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})" if pid else "another user's process"
    except psutil.NoSuchProcess:
        return f"pid {pid}"


def _sweep(config: Settings) -> bool:
    """End what carries this stack's mark: whatever a killed supervisor could not stop itself. Was there anything?"""
    mine = mark(config)
    left = []
    for candidate in psutil.process_iter():
        try:
            if candidate.pid != os.getpid() and candidate.environ().get(MARK) == mine:
                left.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    ancestors = {p.pid for p in psutil.Process().parents()}
    orphans = [p for p in left if p.pid not in ancestors]
    process.end(orphans, grace_s=10.0)
    return bool(orphans)
