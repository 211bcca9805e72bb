"""The whole configuration of a deployment, and what follows from it: addresses and places."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from evoplane.settings.loop import AlertHook, Alerts, Delivery, Evolve, Monitor, Replay, Surfaces
from evoplane.settings.processes import Console, Evidently, Mlflow, Model, Otlp, Paths, Prefect, Worker
from evoplane.settings.section import Section
from evoplane.settings.signals import Harvest, Judge, NextState, RewardSettings, WebhookSource
from evoplane.settings.traffic import A2aAgent, Gateway, McpServer, Price, Store, UpstreamSettings


class Settings(Section):
    """One deployment's."""

    paths: Paths = Paths()
    gateway: Gateway = Gateway()
    store: Store = Store()
    worker: Worker = Worker()
    model: Model = Model()
    prefect: Prefect = Prefect()
    mlflow: Mlflow = Mlflow()
    evidently: Evidently = Evidently()
    console: Console = Console()
    otlp: Otlp = Otlp()
    monitor: Monitor = Monitor()
    evolve: Evolve = Evolve()
    surfaces: Surfaces = Surfaces()
    replay: Replay = Replay()
    delivery: Delivery = Delivery()
    harvest: Harvest = Harvest()
    judge: Judge = Judge()
    next_state: NextState = NextState()
    alerts: Alerts = Alerts()
    alert_hooks: dict[str, AlertHook] = Field({})
    prices: dict[str, Price] = Field({})
    upstreams: dict[str, UpstreamSettings] = Field({})
    mcp: dict[str, McpServer] = Field({})
    a2a: dict[str, A2aAgent] = Field({})
    webhooks: dict[str, WebhookSource] = Field({})
    rewards: dict[str, RewardSettings] = Field({})

    @property
    def var(self) -> Path:
        return self.paths.var

    @property
    def gateway_url(self) -> str:
        return f"http://{self.gateway.host}:{self.gateway.port}"

    @property
    def worker_url(self) -> str:
        return f"http://127.0.0.1:{self.worker.port}"

    @property
    def vllm_url(self) -> str:
        return f"http://127.0.0.1:{self.worker.vllm_port}"

    @property
    def prefect_api_url(self) -> str:
        return f"http://127.0.0.1:{self.prefect.port}/api"

    @property
    def mlflow_url(self) -> str:
        return f"http://127.0.0.1:{self.mlflow.port}"

    @property
    def evidently_url(self) -> str:
        return f"http://127.0.0.1:{self.evidently.port}"

    @property
    def console_url(self) -> str:
        return f"http://{self.console.host}:{self.console.port}"

    @property
    def control_db(self) -> Path:
        return self.var / "control.sqlite"

    @property
    def store_dir(self) -> Path:
        return self.var / "store"

    @property
    def keys_dir(self) -> Path:
        """Where the master key is, unless `EVOPLANE_MASTER_KEY` holds it."""
        return self.var / "keys"

    @property
    def policies_dir(self) -> Path:
        """The deployment's own Cedar policies; those that ship count while there are none."""
        return self.var / "policies"

    @property
    def model_dir(self) -> Path:
        return self.paths.models / self.model.name

    @property
    def snapshots_dir(self) -> Path:
        """The DVC repository of snapshots and training sets."""
        return self.var / "snapshots"

    @property
    def logs_dir(self) -> Path:
        return self.var / "logs"
