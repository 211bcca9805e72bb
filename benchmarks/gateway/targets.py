"""What is measured: the bare upstream, this gateway in both capture modes, and the peers without capture.

Each is one process (MLflow: a parent and one worker), started as its users start it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.requests import Form
from benchmarks.gateway.servers import CannotStart, free_port, inherited, server
from benchmarks.gateway.upstream import MODEL
from evoplane.settings import Settings
from registry import control, tenants

PORTKEY = "@portkey-ai/gateway@1.15.2"

_START_S = 60.0
_MLFLOW_START_S = 240.0
_INSTALL_S = 180.0
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Target:
    """Something that answers chat requests."""

    name: str
    port: int
    form: Form
    pid: int


@contextmanager
def direct(folder: Path) -> Iterator[Target]:
    """The scripted upstream itself."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway.upstream", str(port)]
    with server(command, port, "/", folder / "upstream.log", inherited(), _START_S) as pid:
        yield Target("direct", port, Form(_CHAT, MODEL), pid)


@contextmanager
def evoplane(folder: Path, upstream: int, capture: str, name: str) -> Iterator[Target]:
    """`python -m services.gateway` with default settings, but for the provider and the capture mode."""
    port = free_port()
    var = folder / name
    environment = inherited(
        EVOPLANE_CONFIG=os.devnull,
        EVOPLANE_PATHS__VAR=json.dumps(str(var)),
        EVOPLANE_GATEWAY__PORT=str(port),
        EVOPLANE_GATEWAY__CAPTURE=json.dumps(capture),
        EVOPLANE_UPSTREAMS__SCRIPTED=f'{{url="http://127.0.0.1:{upstream}/v1", models=["{MODEL}"]}}',
    )
    secret = _key(Settings.model_validate({"paths": {"var": var}}))
    command = [sys.executable, "-m", "services.gateway"]
    with server(command, port, "/readyz", folder / f"{name}.log", environment, _START_S) as pid:
        yield Target(name, port, Form(_CHAT, MODEL, (("authorization", f"Bearer {secret}"),)), pid)


def _key(settings: Settings) -> str:
    settings.var.mkdir(parents=True)
    connection = control.connect(settings.control_db)
    tenants.create_tenant(connection, "bench", train="allow")
    tenants.create_agent(connection, "bench", settings.model.name)
    secret = tenants.create_key(connection, "bench", "bench")[1]
    connection.close()
    return secret


@contextmanager
def mlflow(folder: Path, upstream: int) -> Iterator[Target]:
    """MLflow's AI gateway in `mlflow server`, one worker, usage tracking (and with it tracing) off."""
    port = free_port()
    environment = inherited(
        MLFLOW_DISABLE_TELEMETRY="true",
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        MLFLOW_GATEWAY_API_BASE_ALLOWED_SCHEMES="http,https",
        MLFLOW_GATEWAY_API_BASE_ALLOW_PRIVATE_IPS="true",
    )
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--default-artifact-root", str(folder / "mlflow-artifacts")),
    ]
    with server(command, port, "/health", folder / "mlflow.log", environment, _MLFLOW_START_S) as pid:
        try:
            _make_endpoint(f"http://127.0.0.1:{port}/api/3.0/mlflow/gateway", upstream)
        except OSError as error:
            raise CannotStart(f"its endpoint can't be made: {error}") from error
        yield Target("mlflow", port, Form("/gateway/mlflow/v1/chat/completions", "bench"), pid)


def _make_endpoint(api: str, upstream: int) -> None:
    secret = _post(
        f"{api}/secrets/create",
        secret_name="bench",
        secret_value={"api_key": "sk-bench"},
        provider="openai",
        auth_config={"api_base": f"http://127.0.0.1:{upstream}/v1"},
    )
    model = _post(
        f"{api}/model-definitions/create",
        name="bench",
        secret_id=secret["secret"]["secret_id"],
        provider="openai",
        model_name=MODEL,
    )
    linked = {
        "model_definition_id": model["model_definition"]["model_definition_id"],
        "linkage_type": "PRIMARY",
        "weight": 1.0,
    }
    _post(f"{api}/endpoints/create", name="bench", model_configs=[linked], usage_tracking=False)


@contextmanager
def portkey(folder: Path, upstream: int, installed: Path) -> Iterator[Target]:
    """Portkey's gateway on Node, installed by npm into `installed` when it is not there."""
    port = free_port()
    start = _install_portkey(installed) / "node_modules/@portkey-ai/gateway/build/start-server.js"
    command = ["node", str(start), f"--port={port}", "--headless"]
    headers = (
        ("authorization", "Bearer sk-bench"),
        ("x-portkey-provider", "openai"),
        ("x-portkey-custom-host", f"http://127.0.0.1:{upstream}/v1"),
    )
    with server(command, port, "/", folder / "portkey.log", inherited(NODE_ENV="production"), _START_S) as pid:
        yield Target("portkey", port, Form(_CHAT, MODEL, headers), pid)


def _install_portkey(folder: Path) -> Path:
    package = folder / "node_modules/@portkey-ai/gateway/package.json"
    wanted = PORTKEY.rpartition("@")[2]
    if package.exists() and json.loads(package.read_text()).get("version") == wanted:
        return folder
    if shutil.which("npm") is None:
        raise CannotStart(f"npm is not installed: it is needed to get {PORTKEY}")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), PORTKEY]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, cwd=folder, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotStart(f"npm did not install {PORTKEY} within {_INSTALL_S:.0f} s") from error
    if done.returncode != 0:
        raise CannotStart(f"npm can't install {PORTKEY}: {done.stderr[-400:].strip()}")
    return folder


def _post(url: str, **fields: Any) -> dict[str, Any]:
    data = json.dumps(fields).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    for attempt in range(3):
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return dict(json.load(response))
        except TimeoutError:
            time.sleep(attempt)
    raise TimeoutError(url)
