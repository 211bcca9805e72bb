"""A deployment with real Prefect, MLflow, flows and gateway; only the model behind it is scripted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evoplane.settings import Settings
from examples.support.desk import Desk, Ticket
from examples.support.scenario import FACTS_AT_START, TENANTS, fact_sentence, facts_now, requests
from registry import approvals, audit, control, pointers, prefect_runs, tenant_policy, tenants, versions
from registry.manifest import Manifest, MemoryItem, Policy
from tests.flows.model import ScriptedModel

AGENT = "support"
_START_S = 240


class World:
    """The deployment under test, and the people outside it."""

    def __init__(self, config: Settings):
        self.config = config
        self.keys: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        """What the deployment's processes were started with."""
        self._batch = 0

    @property
    def connection(self) -> Any:
        return control.connect(self.config.control_db)

    def set_up_agent(self) -> None:
        for id, name in TENANTS.items():
            tenants.create_tenant(self.connection, id, name, train="allow")
            tenant_policy.put(self.connection, id, tenant_policy.TenantPolicy(pooling=True), "test")
        model = self.config.model.name
        tenants.create_agent(self.connection, AGENT, model, None, ("dana",))
        memory = tuple(
            MemoryItem(id=f"mem_{t}_{topic.replace(' ', '_')}", tenant=t, topic=topic, text=fact_sentence(topic, value),
                       trust="vetted", provenance=("operator",), created_at=control.now())
            for t, sheet in FACTS_AT_START.items() for topic, value in sheet.items()
        )  # fmt: skip
        manifest = Manifest(policy=Policy(base=model, served_name=model), memory=memory)
        first = versions.register(self.config, self.connection, AGENT, manifest, description="as it came")
        pointers.set_champion(self.connection, AGENT, first.version, "first", "test")
        self.keys = {t: tenants.create_key(self.connection, t, AGENT, "serve", owner="test")[1] for t in TENANTS}

    def emit(self, event: str, **payload: Any) -> None:
        prefect_runs.emit_event(self.config, event, AGENT, {"agent": AGENT, **payload})

    def serve(self, n: int) -> list[Ticket]:
        self._batch += 1
        asked = requests("train", n, seed=self._batch, policy_share=1.0)
        return asyncio.run(self._desk().serve(asked))

    def serve_until(self, done: Callable[[], object], what: str, timeout_s: float = 240) -> None:
        """Customers keep coming until `done`."""
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                self._batch += 1
                asyncio.run(self._desk().serve(requests("train", 12, self._batch, 1.0), until=stop.is_set))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            wait_for(done, what, timeout_s, self.runs)
        finally:
            stop.set()
            thread.join(timeout=60)

    def _desk(self) -> Desk:
        facts = facts_now(changed=True)
        return Desk(self.config.gateway_url, self.keys, self.config.model.name, facts, concurrency=4)

    def runs(self) -> list[dict[str, Any]]:
        return prefect_runs.recent_runs(self.config, limit=50)

    def states(self, prefix: str) -> list[str]:
        return [run["state_name"] for run in self.runs() if run["name"].startswith(prefix)]

    def route(self) -> pointers.Route:
        return pointers.read_route(self.connection, AGENT)

    def pending(self) -> approvals.Approval | None:
        waiting = [a for a in approvals.list_approvals(self.connection, AGENT) if a.status == "pending"]
        return waiting[0] if waiting else None

    def outcome(self, version: str) -> str | None:
        ended = [e for e in audit.entries(self.connection, AGENT) if e.action == "delivery.ended"]
        return next((e.detail["outcome"] for e in ended if e.detail["version"] == version), None)


def wait_for(done: Callable[[], object], what: str, timeout_s: float, runs: Callable[[], Any] | None = None) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {timeout_s} s; runs: {runs() if runs else ''}")
        time.sleep(0.5)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    var = tmp_path_factory.mktemp("var")
    first = int(os.environ.get("EVOPLANE_TEST_FLOWS_PORT", "8600"))
    told: dict[str, dict[str, Any]] = {
        "paths": {"var": str(var)},
        "gateway": {"port": first + 1},
        "worker": {"port": first + 2, "vllm_port": first + 2},
        "prefect": {"port": first},
        "mlflow": {"port": first + 4},
        "evidently": {"port": first + 5},
        "monitor": {"debounce_s": 1, "min_outcomes": 40},
        "evolve": {"replay_cases": 48},
        "delivery": {"shadow_sessions": 4, "shadow_share": 1.0, "canary_weights": "[0.5]", "canary_min_sessions": 12,
                     "harm_margin": 0.3, "watch_sessions": 6, "stage_timeout_s": 120},
    }  # fmt: skip
    environment = {**os.environ}
    for section, values in told.items():
        for key, value in values.items():
            environment[f"EVOPLANE_{section.upper()}__{key.upper()}"] = str(value)
    told["delivery"]["canary_weights"] = [0.5]
    config = Settings.model_validate(told)
    home = {
        "PREFECT_HOME": str(var / "prefect"),
        "PREFECT_API_URL": config.prefect_api_url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }
    environment.update(home)
    tools = Path(sys.executable).parent
    control.connect(config.control_db)
    model = ScriptedModel(config.worker.vllm_port)
    model.start()
    commands = {
        "prefect": [str(tools / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(first)],
        "mlflow": [str(tools / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(first + 4), "--workers", "1",
                   "--backend-store-uri", f"sqlite:///{var}/mlflow.sqlite", "--serve-artifacts",
                   "--artifacts-destination", str(var / "mlartifacts")],
        "gateway": [sys.executable, "-m", "services.gateway"],
        "flows": [sys.executable, "-m", "flows.serve"],
    }  # fmt: skip
    processes = []
    for name, command in commands.items():
        log = (var / f"{name}.log").open("wb")
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
    deployment = World(config)
    deployment.environment = environment
    try:
        for url in (f"{config.prefect_api_url}/health", f"{config.mlflow_url}/health", f"{config.gateway_url}/healthz"):
            wait_for(lambda url=url: answers(url), url, _START_S)
        wait_for((var / "flows.ready").exists, f"the flows ({var}/flows.log)", _START_S)
        deployment.set_up_agent()
        yield deployment
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        model.stop()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).is_success
    except httpx.TransportError:
        return False
