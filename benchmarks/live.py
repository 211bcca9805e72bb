"""A gateway and a worker with a real vLLM, in a run-time directory of their own, for measurements that need both."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gateway.servers import CannotStart, free_port, inherited, server
from evoplane.settings import Settings, settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest
from registry.tenants import Purpose

Say = Callable[[str], None]

_START_S = 420.0
_FLIP_S = 10.0
_SEEN_S = 0.3
"""A gateway sees a change of the control database within 100 ms."""


@dataclass
class Live:
    """What is running, and the means to change it."""

    config: Settings
    connection: Any
    tenants: tuple[str, ...]
    operators: dict[str, str] = field(default_factory=dict)
    """Agent → the key that its route is looked at with."""

    @property
    def base_url(self) -> str:
        """What an agent is told."""
        return f"{self.config.gateway_url}/v1"

    def agent(self, name: str) -> None:
        """An agent; it is served the base model until it has a version."""
        if name not in {known.name for known in tenants.list_agents(self.connection)}:
            tenants.create_agent(self.connection, name, self.config.model.name, approvers=("bench",))

    def key(self, agent: str, tenant: str | None = None, purpose: Purpose = "serve") -> str:
        """A new key; usable when this returns."""
        secret = tenants.create_key(self.connection, tenant or self.tenants[0], agent, purpose, owner="bench")[1]
        time.sleep(_SEEN_S)
        return secret

    def register(self, agent: str, manifest: Manifest, parent: str | None = None) -> AgentVersion:
        """Make a version known to the gateway; nobody is served by it yet."""
        known = pointers.versions(self.connection, agent)
        label, at = str(len(known) + 1), control.now()
        version = AgentVersion(
            agent=agent, version=label, digest=manifest.digest, manifest=manifest, parent=parent, created_at=at
        )
        pointers.put_version(self.connection, version)
        return version

    def flip(self, agent: str, label: str, why: str) -> float:
        """Serve the version; gives the seconds until the gateway says that it does."""
        if agent not in self.operators:
            self.operators[agent] = self.key(agent, purpose="operate")
        headers = {"authorization": f"Bearer {self.operators[agent]}"}
        began = time.monotonic()
        pointers.set_champion(self.connection, agent, label, why, "bench")
        while time.monotonic() - began < _FLIP_S:
            route = httpx.get(f"{self.config.gateway_url}/v1/agents/{agent}/route", headers=headers).json()
            if route.get("champion") == label:
                return time.monotonic() - began
            time.sleep(0.01)
        raise RuntimeError(f"the gateway does not serve version {label} of {agent} after {_FLIP_S:.0f} s")


@contextmanager
def live(
    var: Path,
    say: Say,
    *,
    models: Path | None = None,
    tenant_names: tuple[str, ...] = ("northwind",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Live]:
    """Both servers until the block ends. Raises `CannotStart`."""
    here = settings()
    var.mkdir(parents=True, exist_ok=True)
    ports = {"gateway.port": free_port(), "worker.port": free_port(), "worker.vllm_port": free_port()}
    told = {
        "paths.var": str(var.absolute()),
        "paths.models": str((models or here.paths.models).absolute()),
        "worker.vllm_python": str(Path.cwd() / here.worker.vllm_python),
        "worker.threads": "1",
        **{name: str(port) for name, port in ports.items()},
        **(environment or {}),
    }
    env = inherited(**{f"EVOPLANE_{name.replace('.', '__').upper()}": value for name, value in told.items()})
    config = _configured(told)
    connection = control.connect(config.control_db)
    for name in tenant_names:
        tenants.create_tenant(connection, name, train="allow")
    with ExitStack() as stack:
        stack.enter_context(_ended_cleanly())
        say("starting vLLM (about a minute of computing) and the gateway")
        worker = (sys.executable, "-m", "services.worker")
        stack.enter_context(server(worker, config.worker.port, "/healthz", var / "worker.log", env, 60))
        gateway = (sys.executable, "-m", "services.gateway")
        stack.enter_context(server(gateway, config.gateway.port, "/healthz", var / "gateway.log", env, 60))
        _until_serving(config)
        yield Live(config, connection, tenant_names)


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Told to end (SIGTERM), this process stops its servers first: nothing is left running."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _configured(told: Mapping[str, str]) -> Settings:
    sections: dict[str, dict[str, str]] = {}
    for name, value in told.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return Settings.model_validate(sections)


def _until_serving(config: Settings) -> None:
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends:
        try:
            if httpx.get(f"{config.worker_url}/healthz", timeout=5).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise CannotStart(f"vLLM is not up after {_START_S:.0f} s: see {config.logs_dir}")
