"""The environment every component runs in: settings passed on, telemetry off by each library's own name."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from pathlib import Path

from evoplane.settings import Settings

MARK = "EVOPLANE_STACK"
"""Names the stack a process belongs to; how `down` finds what a killed supervisor left."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Each library listens to its own name and spelling: mlflow only to `true`, vLLM only to `1`."""


def environment(config: Settings) -> dict[str, str]:
    """What all components share, on top of the caller's environment.

    The caller's own Prefect settings stay out: they name another server, and flows would be served to it.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {
        **inherited,
        **QUIET,
        "PREFECT_API_URL": config.prefect_api_url,
        MARK: mark(config),
        "EVOPLANE_PATHS__VAR": str(config.var),
        "PYTHONUNBUFFERED": "1",
        "MLFLOW_TRACKING_URI": config.mlflow_url,
    }


def prefect_environment(config: Settings) -> dict[str, str]:
    """The server's own: its files stay inside the run-time directory."""
    home = (config.var / "prefect").resolve()
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": config.prefect_api_url,
        "PREFECT_UI_API_URL": config.prefect_api_url,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
    }


def mlflow_environment(config: Settings) -> dict[str, str]:
    """The server's own. Its job runner is off: it costs seven processes and is not used."""
    return {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": _secret(config, "mlflow-webhooks"),
    }


def mark(config: Settings) -> str:
    return str(config.var.resolve())


def _secret(config: Settings, purpose: str) -> str:
    """A key in Fernet's form, derived from one random secret this installation keeps to itself."""
    file = config.var / "secret"
    if not file.exists():
        config.var.mkdir(parents=True, exist_ok=True)
        _write_private(file, secrets.token_hex(32))
    digest = hashlib.sha256(f"{file.read_text()}/{purpose}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()


def _write_private(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
