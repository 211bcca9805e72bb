"""A deployment as `evoplane up` starts it (all but model server and drift pages), killed and started on another day.

Only the model behind it is scripted. The day is moved for its processes alone, by a clock loaded before libc.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from evoplane.settings import Settings, settings
from evoplane.stack import supervisor
from evoplane.stack.environment import MARK, mark
from registry import approvals, audit, candidates, control, pointers, prefect_runs, tenants, versions
from registry.manifest import Harness, Manifest, Policy
from tests.flows.model import ScriptedModel

COMPILER = shutil.which("cc")
PARTS = ("prefect", "mlflow", "flows", "gateway", "console")
_SHORT = {
    "DELIVERY__CANARY_WEIGHTS": "[0.5]",
    "DELIVERY__CANARY_MIN_SESSIONS": "6",
    "DELIVERY__HARM_MARGIN": "0.95",
    "DELIVERY__WATCH_SESSIONS": "4",
    "DELIVERY__APPROVALS_NEEDED": "2",
}
"""Stages as short as they can be and still be stages; four eyes."""
_QUIET = {"MONITOR__INTERVAL_S": "3600"}
_DAY_S = 24 * 3600


class Deployment:
    """The deployment, its agents, and the people outside it."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._clock = folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O2", "-o", str(self._clock), str(source)], check=True)
        self._told = {f"EVOPLANE_{name}": value for name, value in {**_ports(), **_SHORT, **_QUIET}.items()}
        self._told["EVOPLANE_PATHS__VAR"] = str(folder / "var")
        self._days = 0
        self._keys: dict[str, str] = {}
        self.operators: dict[str, str] = {}
        """Eli's key for each agent."""
        with self._environment():
            self.config: Settings = settings()
        self._model = ScriptedModel(self.config.worker.vllm_port)
        self._model.start()

    # -- its lives

    def start(self, day: int, parts: tuple[str, ...] = PARTS) -> None:
        """`evoplane up` on a day, counted from today; returns when all of it is healthy."""
        self._days = day
        with self._environment(self._moved()):
            supervisor.up(self.config, parts, progress=print)

    def kill(self) -> int:
        """SIGKILL to all of it at once, supervisor first; returns how many processes there were."""
        marked = mark(self.config)
        killed = 0
        while left := sorted(_of(marked), key=lambda p: p.create_time()):
            for process in left:
                process.kill()
            psutil.wait_procs(left, timeout=10)
            killed += len(left)
        return killed

    def close(self) -> None:
        supervisor.down(self.config)
        self._model.stop()

    # -- its agents

    @property
    def connection(self) -> Any:
        return control.connect(self.config.control_db)

    def agent(self, name: str) -> None:
        """An agent with version 1 serving and version 2 registered; dana and eli approve."""
        connection, model = self.connection, self.config.model.name
        tenants.create_agent(connection, name, model, None, ("dana", "eli"))
        first = Manifest(policy=Policy(base=model, served_name=model))
        second = Manifest(policy=Policy(base=model, served_name=model), harness=Harness(params={"seed": 1}))
        for manifest, parent in ((first, None), (second, "1")):
            versions.register(
                self.config, connection, name, manifest, parent=parent, intervention="harness" if parent else "initial",
                description="as it came" if parent is None else "answers are repeatable",
            )  # fmt: skip
        pointers.set_champion(connection, name, "1", "first", "test")
        self.operators[name] = tenants.create_key(connection, "acme", name, "operate", owner="eli")[1]
        self._keys[name] = tenants.create_key(connection, "acme", name, "serve", owner="test")[1]

    def deliver(self, agent: str) -> None:
        payload = {"agent": agent, "version": "2", "skip_shadow": True}
        prefect_runs.emit_event(self.config, "evoplane.candidate.accepted", agent, payload)

    @contextmanager
    def customers(self, *agents: str) -> Iterator[None]:
        """They keep coming to each agent inside the block, and are content."""
        stop = threading.Event()
        threads = [threading.Thread(target=self._visit, args=(agent, stop), daemon=True) for agent in agents]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=30)

    def _visit(self, agent: str, stop: threading.Event) -> None:
        headers = {"authorization": f"Bearer {self._keys[agent]}"}
        with httpx.Client(base_url=self.config.gateway_url, headers=headers, timeout=30) as http:
            while not stop.wait(0.2):
                session = f"visit-{uuid.uuid4().hex}"
                asked = {"model": self.config.model.name, "messages": [{"role": "user", "content": "Is it open?"}]}
                answer = http.post("/v1/chat/completions", json=asked, headers={"x-evoplane-session-id": session})
                answer.raise_for_status()
                said = {
                    "session_id": answer.headers["x-evoplane-session-id"],
                    "event_id": answer.headers["x-evoplane-event-id"],
                    "name": "resolved", "value": 1, "source": {"kind": "environment", "id": "helpdesk"},
                }  # fmt: skip
                http.post("/v1/feedback", json=[said]).raise_for_status()

    # -- its people

    def approval(self, agent: str) -> approvals.Approval:
        (asked,) = approvals.list_approvals(self.connection, agent)
        return asked

    def asked(self, agent: str) -> bool:
        """Is the approval asked for, and its run suspended?"""
        waiting = approvals.list_approvals(self.connection, agent)
        return bool(waiting) and self.run(agent)["state_type"] == "PAUSED"

    def run(self, agent: str) -> dict[str, Any]:
        return prefect_runs.read_run(self.config, str(self.approval(agent).flow_run_id))

    def evoplane(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the deployment's machine, on its day."""
        command = [str(Path(sys.executable).with_name("evoplane")), *arguments, "--json"]
        environ = {**os.environ, **self._told, **self._moved()}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)

    def decide(self, agent: str, word: str, by: str) -> subprocess.CompletedProcess[str]:
        return self.evoplane("approvals", word, self.approval(agent).id, "--by", by, "--reason", "seen")

    def form(self, agent: str, decision: str, by: str) -> dict[str, Any]:
        """What Prefect's form sends."""
        form = {"decision": decision, "reviewer": by, "note": "seen"}
        return prefect_runs.resume_run(self.config, str(self.approval(agent).flow_run_id), form)

    # -- what came of it

    def champion(self, agent: str) -> str:
        return pointers.read_route(self.connection, agent).champion

    def promotions(self, agent: str) -> int:
        entries = audit.entries(self.connection, agent)
        return sum(e.action == "promote" and e.detail["champion"] == "2" for e in entries)

    def outcomes(self, agent: str) -> list[str]:
        return [e.detail["outcome"] for e in audit.entries(self.connection, agent) if e.action == "delivery.ended"]

    def state(self, agent: str) -> str:
        known = candidates.get(self.connection, agent, "2")
        return known.state if known is not None else ""

    def said(self, agent: str) -> list[tuple[str, str, str]]:
        """Who said what by which way, of the agent's approval, from the audit log."""
        entries = audit.entries(self.connection, self.approval(agent).id)
        return [(e.actor, e.action, e.detail["channel"]) for e in entries if "channel" in e.detail]

    # -- the environment

    def _moved(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._clock), "CLOCK_AHEAD_S": str(self._days * _DAY_S)} if self._days else {}

    @contextmanager
    def _environment(self, more: Mapping[str, str] | None = None) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self._told | dict(more or {}))
        settings.cache_clear()
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            settings.cache_clear()


def wait_for(what: str, true: Callable[[], object], timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:.0f} s"
        time.sleep(0.3)


def _of(marked: str) -> list[psutil.Process]:
    """Every process of the deployment that lives."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _ports() -> dict[str, str]:
    names = ("GATEWAY__PORT", "WORKER__PORT", "PREFECT__PORT", "MLFLOW__PORT", "EVIDENTLY__PORT", "CONSOLE__PORT")
    probes = [socket.socket() for _ in names]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = {name: str(probe.getsockname()[1]) for name, probe in zip(names, probes, strict=True)}
    for probe in probes:
        probe.close()
    return ports | {"WORKER__VLLM_PORT": ports["WORKER__PORT"]}  # the scripted model is worker and vLLM in one
