"""MLflow runs: where training curves, evaluation numbers and bundles are kept for people to see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evoplane.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MAX_PARAM_CHARS = 500


def client(config: Settings) -> MlflowClient:
    """The MLflow client of this process. Imported on first use: it costs about ten CPU-seconds."""
    return _client(config.mlflow_url)


def start_run(config: Settings, agent: str, name: str, params: Mapping[str, Any]) -> str:
    """Open a run in the agent's experiment; returns its id."""
    mlflow = client(config)
    run_id: str = mlflow.create_run(
        experiment(config, agent), run_name=name, tags={"evoplane.agent": agent}
    ).info.run_id
    for key, value in params.items():
        mlflow.log_param(run_id, key, str(value)[:_MAX_PARAM_CHARS])
    return run_id


def experiment(config: Settings, agent: str) -> str:
    """The id of the agent's experiment, which is made if there is none."""
    mlflow = client(config)
    found = mlflow.get_experiment_by_name(agent)
    return str(found.experiment_id if found else mlflow.create_experiment(agent))


def assess(
    config: Settings, trace_id: str, name: str, value: bool | float | str, kind: str, source: str, why: str
) -> None:
    """Write an assessment of a trace: what `source` (CODE, HUMAN, LLM_JUDGE) says about it."""
    client(config)  # sets where MLflow is
    import mlflow
    from mlflow.entities import AssessmentSource

    said = AssessmentSource(source_type=kind, source_id=source)
    mlflow.log_feedback(trace_id=trace_id, name=name, value=value, source=said, rationale=why or None)


def log_metrics(config: Settings, run_id: str, values: Mapping[str, float], step: int = 0) -> None:
    """Log numbers; what is not finite is left out (an unobserved rate is not a number)."""
    mlflow = client(config)
    for key, value in values.items():
        if value == value and abs(value) != float("inf"):
            mlflow.log_metric(run_id, key, float(value), step=step)


def log_folder(config: Settings, run_id: str, path: Path, name: str) -> None:
    """Keep a file, or all files of a folder, as the run's artifact `name`."""
    mlflow = client(config)
    log = mlflow.log_artifacts if path.is_dir() else mlflow.log_artifact
    log(run_id, str(path), artifact_path=name)


def finish_run(config: Settings, run_id: str, ok: bool = True) -> None:
    client(config).set_terminated(run_id, "FINISHED" if ok else "FAILED")


def run_url(config: Settings, run_id: str) -> str:
    experiment = client(config).get_run(run_id).info.experiment_id
    return f"{config.mlflow_url}/#/experiments/{experiment}/runs/{run_id}"


@lru_cache(maxsize=4)
def _client(url: str) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # standard output is the command's own
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ["MLFLOW_TRACKING_URI"] = url  # proxied artifacts are resolved through it
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=url, registry_uri=url)
