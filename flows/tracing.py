"""Traces for people: failures to MLflow, what has ended to the operator's collector. Part of a look; stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dashboards.traces import mirror
from dashboards.traces.forward import forward
from evaluators.cases import Case
from evoplane.settings import Settings, SettingsError, place_of
from registry import tracking
from services.proxy.reader import StoreReader

_log = logging.getLogger("flows.tracing")


def to_mlflow(config: Settings, reader: StoreReader, agent: str, cases: Sequence[Case]) -> str:
    """Tell MLflow of failures it has not seen; what a person should know of it."""
    file = config.var / "traces" / f"{agent}.json"
    told = mirror.read(file)
    try:
        number = mirror.tell(
            reader, config.mlflow_url, tracking.experiment(config, agent), cases, told,
            lambda *assessment: tracking.assess(config, *assessment),
        )  # fmt: skip
    except Exception as error:  # whatever MLflow's client or the connection raises: looks go on
        _log.warning("MLflow got no traces of %s: %s", agent, error)
        return f"MLflow got no traces: {type(error).__name__}"
    mirror.write(file, told)
    return f"{number} traces in MLflow" if number else ""


def to_collector(config: Settings) -> str:
    """Send what has ended; what a person should know of it."""
    place = place_of(config.otlp.url)
    try:
        number = forward(config)
    except SettingsError:
        raise
    except Exception as error:  # the next look sends it again
        _log.warning("traces were not taken by %s: %s", place, error)
        return f"traces NOT taken by {place}: {type(error).__name__}"
    return f"{number} trajectories to {place}" if number else ""
