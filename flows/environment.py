"""The environment Prefect reads at import: which server, where results are kept, nothing phoned home.

Imported before `prefect` by every module here that uses it.
"""

from __future__ import annotations

import os

from evoplane.settings import Settings, ending_when_wrong, settings


def apply(config: Settings) -> None:
    """Set what is not set yet; runs started by a server inherit it."""
    home = (config.var / "prefect").resolve()
    defaults = {
        "PREFECT_API_URL": config.prefect_api_url,
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "DO_NOT_TRACK": "1",
        "GX_ANALYTICS_ENABLED": "false",
        "DVC_NO_ANALYTICS": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


with ending_when_wrong():
    apply(settings())
