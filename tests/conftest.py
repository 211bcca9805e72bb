"""What holds for all tests."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from evoplane.settings import Settings

_DEFAULTS = Settings()
DEPLOYMENT = frozenset(
    {
        _DEFAULTS.gateway.port, _DEFAULTS.worker.port, _DEFAULTS.worker.vllm_port, _DEFAULTS.prefect.port,
        _DEFAULTS.mlflow.port, _DEFAULTS.evidently.port, _DEFAULTS.console.port,
    }
)  # fmt: skip
"""Ports of whatever deployment runs on this machine with default settings."""


@pytest.fixture(autouse=True)
def no_deployment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without servers never reaches one that happens to run here: it might unload what users are served by."""
    if request.node.get_closest_marker("stack") is not None:
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] in DEPLOYMENT:
            raise ConnectionRefusedError(f"port {address[1]} is a deployment's: a test without servers keeps away")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
