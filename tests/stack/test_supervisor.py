"""The supervisor with toy components: real processes, a real supervisor process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from evoplane.settings import Settings
from evoplane.stack import components as components_module
from evoplane.stack import state, supervisor
from evoplane.stack.components import Component
from evoplane.stack.environment import MARK, mark
from evoplane.stack.state import StackState

TOY = """
import http.server, subprocess, sys
if len(sys.argv) > 2: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

RUN = """
import sys
sys.path.insert(0, {here!r})
from tests.stack.test_supervisor import install_toys
from evoplane.settings import settings
from evoplane.stack import supervisor
install_toys({ports!r})
supervisor.supervise(settings())
"""


def install_toys(ports: list[int]) -> None:
    """Replace the product's components by toy servers; the first one also starts a child."""

    def toys(config: Settings) -> list[Component]:
        return [
            Component(
                f"toy{number}",
                (sys.executable, "-c", TOY, str(port), *(["child"] if number == 0 else [])),
                f"http://127.0.0.1:{port}",
                components_module.answers(f"http://127.0.0.1:{port}/"),
                {f"toy{number}.port": port},
            )
            for number, port in enumerate(ports)
        ]

    supervisor.components = toys  # type: ignore[assignment]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def states(config: Settings) -> list[str]:
    return [status.state for status in state.status(config)]


def marked(config: Settings) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark(config):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": tmp_path / "var"}})


@pytest.fixture
def running(config: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor process with two healthy toys."""
    here = str(Path(__file__).parents[2])
    script = RUN.format(here=here, ports=[free_port(), free_port()])
    env = {**os.environ, MARK: mark(config), "EVOPLANE_PATHS__VAR": str(config.var)}
    process = subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True)
    wait_until(lambda: states(config) == ["healthy", "healthy"])
    yield process
    process.kill()
    process.wait()
    for left in marked(config):
        left.kill()


@pytest.mark.stack
def test_a_component_that_is_killed_is_restarted_and_counted(
    config: Settings, running: subprocess.Popen[bytes]
) -> None:
    pid = state.status(config)[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: state.status(config)[1].restarts == 1 and states(config) == ["healthy", "healthy"])
    assert state.status(config)[1].pid != pid


def test_down_leaves_no_process_behind(config: Settings, running: subprocess.Popen[bytes]) -> None:
    assert len(marked(config)) >= 4  # the supervisor, two toys and a toy's child
    supervisor.down(config)
    running.wait(timeout=10)
    assert marked(config) == []
    assert states(config) == ["stopped", "stopped"]


@pytest.mark.stack
def test_down_after_the_supervisor_was_killed_leaves_no_process_behind(
    config: Settings, running: subprocess.Popen[bytes]
) -> None:
    running.kill()
    running.wait()
    supervisor.down(config)
    assert marked(config) == []


@pytest.mark.stack
def test_status_after_the_supervisor_was_killed_says_so(config: Settings, running: subprocess.Popen[bytes]) -> None:
    running.kill()
    running.wait()
    assert [s.detail for s in state.status(config)] == ["the supervisor is gone"] * 2


def test_down_when_nothing_runs_does_nothing_and_says_so(config: Settings) -> None:
    assert not supervisor.down(config)


def test_a_taken_port_names_its_owner_and_the_setting(config: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = Settings.model_validate({"paths": {"var": config.var}, "gateway": {"port": port}})
        with pytest.raises(supervisor.StackError, match=rf"port {port} \(gateway\.port\) is taken by .*pid"):
            supervisor.up(busy, only=["gateway"])


def test_an_unknown_component_is_refused_with_the_known_ones(config: Settings) -> None:
    with pytest.raises(supervisor.StackError, match="gateway, worker, prefect"):
        supervisor.up(config, only=["gatway"])


def test_a_component_that_can_not_be_started_now_is_tried_again_and_ends_no_other(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = Component("toy", (sys.executable, "-c", "import time; time.sleep(600)"), "", lambda: True, {})
    start, refusals = supervisor.process.start, iter([BlockingIOError(11, "Resource temporarily unavailable")])

    def refused_once(*given: object, **more: object) -> object:
        for error in refusals:
            raise error
        return start(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor.process, "start", refused_once)
    runner = supervisor._Runner(component, config)
    runner.tick()
    assert (runner.status.state, runner.status.restarts) == ("restarting", 1)
    assert "Resource temporarily unavailable); starting again in 1 s" in runner.status.detail
    wait_until(lambda: runner.tick() or runner.status.state == "starting")
    runner.stop()


def test_what_a_running_stack_lacks_is_named_instead_of_left_out(config: Settings) -> None:
    me = psutil.Process()
    gateway = state.ComponentStatus(name="gateway", state="healthy", url="")
    config.var.mkdir(parents=True)
    state.write(config, StackState(supervisor_pid=me.pid, supervisor_started=me.create_time(), components=[gateway]))
    supervisor.up(config, only=["gateway"])
    with pytest.raises(supervisor.StackError, match="without mlflow: `evoplane down`"):
        supervisor.up(config, only=["gateway", "mlflow"])
    with pytest.raises(supervisor.StackError, match="without worker, prefect, "):
        supervisor.up(config)


def test_a_damaged_state_file_is_no_state(config: Settings) -> None:
    config.var.mkdir(parents=True)
    state.state_file(config).write_text("{")
    assert state.status(config) == []


def test_other_deployments_that_run_in_this_ones_directory_are_found(config: Settings) -> None:
    me = psutil.Process()
    for name, started in (("demo", me.create_time()), ("gone", me.create_time() - 100)):
        other = Settings.model_validate({"paths": {"var": config.var / name}})
        other.var.mkdir(parents=True)
        state.write(other, StackState(supervisor_pid=me.pid, supervisor_started=started))
    assert state.running_below(config.var) == [config.var / "demo"]


def test_a_recycled_pid_is_not_the_supervisor(config: Settings) -> None:
    me = psutil.Process()
    assert StackState(supervisor_pid=me.pid, supervisor_started=me.create_time()).supervisor() is not None
    assert StackState(supervisor_pid=me.pid, supervisor_started=me.create_time() - 100).supervisor() is None
