"""What is wrong with this installation, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Literal

import psutil

from evoplane.settings import Settings
from evoplane.stack import state
from evoplane.stack.components import components
from registry import control, presence
from services.worker.serving.model import is_ready

_EXPECTED = {"prefect": "3.9.", "mlflow": "3.17.", "pandas": "3.0.", "torch": "2.13.", "transformers": "5.24."}
"""What the pins install and the tests ran with, by prefix."""
_MIN_FREE_BYTES = 2 * 2**30
_FIRST_YEAR = 2026
"""A clock before this is wrong: ids, retention and approvals would be too."""
_CLOCK_SLACK_S = 120.0


_FOR_THE_WORKER = ": the worker needs it, capture alone does not"


@dataclass(frozen=True)
class Finding:
    level: Literal["ok", "warning", "error"]
    what: str
    do: str = ""


def doctor(config: Settings) -> list[Finding]:
    """Every check's finding, also the good ones."""
    checks = (_versions, _vllm, _model, _secrets, _disk, _clock, _control, _processes, _ports)
    return [finding for check in checks for finding in check(config)]


def _versions(config: Settings) -> Iterator[Finding]:
    wrong = []
    for package, prefix in _EXPECTED.items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            found = "missing"
        if not found.startswith(prefix):
            wrong.append(f"{package} is {found}, expected {prefix}x")
    if wrong:
        yield Finding("error", "; ".join(wrong), "make env (constraints/main-py311.txt has what was tested)")
    else:
        yield Finding("ok", "main environment: " + ", ".join(f"{p} {metadata.version(p)}" for p in _EXPECTED))


def _vllm(config: Settings) -> Iterator[Finding]:
    python = config.worker.vllm_python
    ask = "import importlib.metadata as m; print(m.version('vllm'))"
    if not python.exists():
        yield Finding(_worker_lacks(config), f"no vLLM environment at {python}{_FOR_THE_WORKER}", "make env")
        return
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True)
    if done.returncode:
        what = f"{python} has no distribution named vllm{_FOR_THE_WORKER}"
        yield Finding(_worker_lacks(config), what, "rm -rf .venv-vllm && make env")
    else:
        yield Finding("ok", f"vLLM environment: vllm {done.stdout.strip()}")


def _model(config: Settings) -> Iterator[Finding]:
    if is_ready(config):
        yield Finding("ok", f"model {config.model.name} in {config.model_dir}")
    else:
        what = f"model {config.model.name} is missing ({config.model_dir}){_FOR_THE_WORKER}"
        yield Finding(_worker_lacks(config), what, "make model")


def _worker_lacks(config: Settings) -> Literal["warning", "error"]:
    """How bad it is that the worker can't work: not very, to a deployment that was last started without it."""
    known = state.read(config)
    return "error" if known is not None and any(c.name == "worker" for c in known.components) else "warning"


def _secrets(config: Settings) -> Iterator[Finding]:
    """The environment variables that the configuration names."""
    named = {f"upstreams.{name}": [each.key_env] for name, each in config.upstreams.items() if each.key_env}
    named |= {f"mcp.{name}": list(each.headers.values()) for name, each in config.mcp.items()}
    named |= {f"webhooks.{name}": list(each.secret_env) for name, each in config.webhooks.items()}
    missing = [f"{where}: {name}" for where, names in named.items() for name in names if not os.environ.get(name)]
    if missing:
        yield Finding("error", f"not set in the environment: {', '.join(missing)}", "export them before `evoplane up`")
    elif named:
        yield Finding("ok", "every environment variable that the configuration names is set")


def _disk(config: Settings) -> Iterator[Finding]:
    place = next(p for p in (config.var.resolve(), *config.var.resolve().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < _MIN_FREE_BYTES:
        what = f"{free / 2**30:.1f} GB free at {place}: capture stops when it is full"
        yield Finding("error", what, "make room, or move [paths] var to a larger disk")
    else:
        yield Finding("ok", f"{free / 2**30:.0f} GB free at {place}")


def _clock(config: Settings) -> Iterator[Finding]:
    now = datetime.now(UTC)
    if now.year < _FIRST_YEAR:
        yield Finding("error", f"the clock says {now:%Y-%m-%d}", "set the machine's clock (NTP)")
        return
    last = _last_audit(config)
    if last is not None and (last - now).total_seconds() > _CLOCK_SLACK_S:
        yield Finding("error", f"the clock is behind the last audit entry ({last:%Y-%m-%d %H:%M:%S})", "set the clock")
    else:
        yield Finding("ok", f"clock: {now:%Y-%m-%d %H:%M:%S} UTC")


def _last_audit(config: Settings) -> datetime | None:
    if not config.control_db.exists():
        return None
    try:
        connection = control.connect(config.control_db, read_only=True)
        row = connection.execute("SELECT at FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    except sqlite3.Error:
        return None
    return datetime.fromisoformat(row["at"]) if row else None


def _control(config: Settings) -> Iterator[Finding]:
    if not config.control_db.exists():
        yield Finding("ok", "no control database yet: `evoplane tenant create` makes it")
        return
    try:
        found = control.connect(config.control_db, read_only=True).execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    if found == "ok":
        yield Finding("ok", f"control database {config.control_db} is sound")
    else:
        yield Finding("error", f"control database {config.control_db}: {found}", "restore it from a backup")


def _processes(config: Settings) -> Iterator[Finding]:
    known = state.read(config)
    if known is None:
        yield Finding("ok", "the stack has not been started here")
    elif known.supervisor() is None:
        ran = any(component.state != "stopped" for component in known.components)
        if ran:
            yield Finding("warning", "the supervisor died without stopping its components", "evoplane down, then up")
        else:
            yield Finding("ok", "the stack is stopped")
    else:
        for component in known.components:
            if component.state != "healthy":
                # the worker is as healthy as its vLLM, which has a log of its own
                names = [component.name, *(("vllm",) if component.name == "worker" else ())]
                logs = " and ".join(f"{config.logs_dir / name}.log" for name in names)
                yield Finding("error", f"{component.name} is {component.state}: {component.detail}", f"read {logs}")
        yield Finding("ok", f"supervisor runs (pid {known.supervisor_pid})")


def _ports(config: Settings) -> Iterator[Finding]:
    known = state.read(config)
    if known is not None and known.supervisor() is not None:
        return
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    ours = {config.gateway.port} if config.gateway_url in presence.gateways(config) else set()
    for port in ours & listening:
        yield Finding("ok", f"port {port}: this deployment's gateway runs, not started by `evoplane up`")
    taken = [(s, p) for c in components(config) for s, p in c.ports.items() if p in listening - ours]
    for setting, port in taken:
        yield Finding("error", f"port {port} ({setting}) is taken", f"stop what listens there, or change {setting}")
    if not taken:
        yield Finding("ok", "all other ports are free" if ours else "all ports are free")
