"""Eight gateways as a deployment runs them: processes of their own, one control database, one scripted model server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.servers import free_port, inherited, server
from evoplane.settings import Settings
from registry import control, keyring, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy

AGENT = "support"
MODEL = "bench-model"
GOOD, BAD = "1", "2"
_START_S = 120.0


@dataclass(frozen=True)
class Fleet:
    urls: list[str]
    secret: str
    config: Settings
    environment: dict[str, str]
    """Of a command that belongs to this deployment."""


@contextmanager
def fleet(folder: Path, gateways: int) -> Iterator[Fleet]:
    """Running gateways that share keys, pointers and presence, each with an event log of its own."""
    shared = folder / "shared"
    for name in ("keys", "gateways"):
        (shared / name).mkdir(parents=True)
    upstream = free_port()
    told = {
        "EVOPLANE_CONFIG": os.devnull,
        "EVOPLANE_PATHS__VAR": json.dumps(str(shared)),
        "EVOPLANE_MODEL__NAME": json.dumps(MODEL),
        "EVOPLANE_WORKER__VLLM_PORT": str(upstream),
        "EVOPLANE_PREFECT__PORT": str(upstream),
        "EVOPLANE_HARVEST__ENABLED": "false",
    }
    config = Settings.model_validate(
        {"paths": {"var": shared}, "model": {"name": MODEL}, "worker": {"vllm_port": upstream}}
    )
    secret = _filled(config)
    with ExitStack() as servers:
        command = [sys.executable, "-m", "benchmarks.gateway.upstream", str(upstream)]
        servers.enter_context(server(command, upstream, "/", folder / "upstream.log", inherited(), _START_S))
        urls = []
        for number in range(gateways):
            var, port = folder / f"gateway-{number}", free_port()
            var.mkdir()
            for name in ("control.sqlite", "keys", "gateways"):
                (var / name).symlink_to(shared / name)
            environment = inherited(
                **{**told, "EVOPLANE_PATHS__VAR": json.dumps(str(var)), "EVOPLANE_GATEWAY__PORT": str(port)}
            )
            command = [sys.executable, "-m", "services.gateway"]
            servers.enter_context(server(command, port, "/healthz", var / "gateway.log", environment, _START_S))
            urls.append(f"http://127.0.0.1:{port}")
        yield Fleet(urls, secret, config, _compiling(inherited(**told), folder / "bytecode"))


def _compiling(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Of commands that find their modules compiled, as after any first use of an installation."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


def _filled(config: Settings) -> str:
    connection = control.connect(config.control_db)
    keyring.master_key(config.keys_dir)
    tenants.create_tenant(connection, "acme", train="deny")
    tenants.create_agent(connection, AGENT, MODEL, approvers=("dana",))
    for label in (GOOD, BAD):
        manifest = Manifest(policy=Policy(base=MODEL, served_name=f"bench-v{label}"))
        version = AgentVersion(agent=AGENT, version=label, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
    pointers.set_champion(connection, AGENT, GOOD, "first", "bench")
    return tenants.create_key(connection, "acme", AGENT)[1]
