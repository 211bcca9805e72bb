"""A gateway process, the scripted model behind it and beside it, and a client's run against both.

Each client gets a tenant and an agent of its own, so that what is stored is told apart by tenant.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from evoplane.settings import Settings
from registry import control, tenant_policy, tenants
from registry.tenant_policy import TenantPolicy
from services.proxy.dialects import BY_NAME
from services.proxy.store import StoreReader, open_reader
from tests.contract.model import Exchange, ScriptedModel

ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).parent / "clients"
AGENT = "desk"
_START_S = 30
_CLIENT_S = 120

_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
}
"""What stops traffic to other hosts."""


@dataclass
class Served:
    """The running gateway."""

    url: str
    settings: Settings
    reader: StoreReader
    connection: Any

    def key(self, tenant: str, redaction: Literal["standard", "off"] = "standard") -> str:
        """A new tenant's key."""
        with control.transaction(self.connection):
            tenants.create_tenant(self.connection, tenant, train="allow")
            tenant_policy.put(self.connection, tenant, TenantPolicy(redaction=redaction), "test")
            secret = tenants.create_key(self.connection, tenant, AGENT)[1]
        time.sleep(0.3)  # the gateway looks at the control database every 100 ms
        return secret


@dataclass
class Ran:
    """What a client got, and what the model was asked, without and with the gateway in between."""

    tenant: str
    direct: dict[str, Any]
    through: dict[str, Any]
    asked_direct: list[Exchange]
    asked_through: list[Exchange]
    beside_direct: list[tuple[str, bytes]]
    beside_through: list[tuple[str, bytes]]


def python(environment: str) -> Path:
    """The interpreter of a client environment; skips the test where it was not made."""
    path = ROOT / environment / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{environment} is missing: `make clients` makes it")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as running:
        yield running


def configuration(folder: Path, upstream_url: str, mcp_port: int) -> str:
    """An `evoplane.toml` for a gateway before one provider of every dialect and one tool server."""
    dialects = json.dumps(list(BY_NAME))
    models = json.dumps(["gpt-*", "claude-*", "text-embedding-*"])
    lines = [
        "[paths]", f'var = "{folder}"',
        "[gateway]", f"port = {free_port()}",
        "[upstreams.vendor]", f'url = "{upstream_url}"', f"dialects = {dialects}", f"models = {models}",
        "[mcp.desk]", f'url = "http://127.0.0.1:{mcp_port}/mcp"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def mcp_port() -> int:
    """Where the tool server is, when a test has started it."""
    return free_port()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel, mcp_port: int) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("contract")
    file = folder / "evoplane.toml"
    file.write_text(configuration(folder, model.url, mcp_port))
    yield from start(file, "smollm2-135m")


def start(file: Path, agents_model: str, **environment: str) -> Iterator[Served]:
    """A gateway process on this configuration, stopped when the generator is left."""
    from evoplane.settings import read_settings

    settings = read_settings(file, environment)
    settings.var.mkdir(parents=True, exist_ok=True)
    connection = control.connect(settings.control_db)
    with control.transaction(connection):
        tenants.create_agent(connection, AGENT, agents_model)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("EVOPLANE_")} | environment
    environ |= {"EVOPLANE_CONFIG": str(file), "PYTHONPATH": str(ROOT)}
    log = (file.parent / "gateway.log").open("w")
    process = subprocess.Popen([sys.executable, "-m", "services.gateway"], env=environ, stdout=log, stderr=log)
    reader = open_reader(settings)
    try:
        _wait_for(f"{settings.gateway_url}/readyz", process)
        yield Served(settings.gateway_url, settings, reader, connection)
    finally:
        process.terminate()
        process.wait(30)
        log.close()
        reader.close()
        connection.close()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, "the gateway did not start"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the gateway did not start in time")


def run_client(interpreter: Path, script: str, base: str, key: str, folder: Path, *more: str, **env: str) -> Any:
    """Run a client script with nothing but a base URL and a key; gives the JSON it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "result.json"
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "TMPDIR": str(folder),
        "OPENAI_BASE_URL": f"{base}/v1", "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": key, **_QUIET, **env,
    }  # fmt: skip
    command = [str(interpreter), str(CLIENTS / script), str(target), *more]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=_CLIENT_S)
    assert target.exists(), f"{script} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(target.read_text())
