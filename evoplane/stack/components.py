"""What the stack consists of: each component's command, environment, port and health question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from evoplane.settings import Settings
from evoplane.stack.environment import mlflow_environment, prefect_environment

_HEALTH_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Component:
    name: str
    command: tuple[str, ...]
    url: str
    """What a person opens or an agent connects to; empty for a component without a port."""
    healthy: Callable[[], bool]
    ports: dict[str, int] = field(default_factory=dict)
    """Setting name → port it must have for itself."""
    env: dict[str, str] = field(default_factory=dict)


def components(config: Settings) -> list[Component]:
    """All components of a configuration, in the order they are shown."""
    var = config.var.resolve()
    python = sys.executable
    scripts = Path(python).parent
    mlflow_store = f"sqlite:///{var}/mlflow/mlflow.db"
    return [
        Component(
            "gateway",
            (python, "-m", "services.gateway"),
            config.gateway_url,
            answers(f"{config.gateway_url}/healthz"),
            {"gateway.port": config.gateway.port},
        ),
        Component(
            "worker",
            (python, "-m", "services.worker"),
            config.worker_url,
            answers(f"{config.worker_url}/healthz"),
            {"worker.port": config.worker.port, "worker.vllm_port": config.worker.vllm_port},
        ),
        Component(
            "prefect",
            (str(scripts / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(config.prefect.port)),
            f"http://127.0.0.1:{config.prefect.port}",
            answers(f"{config.prefect_api_url}/health"),
            {"prefect.port": config.prefect.port},
            prefect_environment(config),
        ),
        Component("flows", (python, "-m", "flows.serve"), "", lives(var / "flows.ready")),
        Component(
            "mlflow",
            (
                *(str(scripts / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(config.mlflow.port)),
                *("--workers", "1", "--backend-store-uri", mlflow_store),
                *("--serve-artifacts", "--artifacts-destination", str(var / "mlflow" / "artifacts")),
            ),
            config.mlflow_url,
            answers(f"{config.mlflow_url}/health"),
            {"mlflow.port": config.mlflow.port},
            mlflow_environment(config),
        ),
        Component(
            "evidently",
            (
                *(str(scripts / "evidently"), "ui", "--workspace", str(var / "evidently")),
                *("--host", "127.0.0.1", "--port", str(config.evidently.port)),
            ),
            config.evidently_url,
            answers(f"{config.evidently_url}/api/version"),
            {"evidently.port": config.evidently.port},
        ),
        Component(
            "console",
            (python, "-m", "dashboards.console"),
            config.console_url,
            answers(f"{config.console_url}/healthz"),
            {"console.port": config.console.port},
        ),
    ]


def lives(file: Path) -> Callable[[], bool]:
    """A health question for a component without a port: does the process whose id the file holds live?"""

    def ask() -> bool:
        try:
            return psutil.Process(int(file.read_text())).status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, psutil.NoSuchProcess):
            return False

    return ask


def answers(url: str) -> Callable[[], bool]:
    """A health question: does the URL answer with success? One client is kept: making one costs 20 ms of CPU."""
    client = httpx.Client(timeout=_HEALTH_TIMEOUT_S)

    def ask() -> bool:
        try:
            return client.get(url).is_success
        except httpx.HTTPError:
            return False

    return ask
