"""A vLLM server as the worker starts it, for as long as a measurement lasts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.gateway.servers import CannotStart, free_port
from evoplane.settings import Settings
from services.worker import process
from services.worker.serving import vllm

_START_S = 420.0


@contextmanager
def serving(settings: Settings, folder: Path, max_model_len: int) -> Iterator[Settings]:
    """Settings of a running server with the configured base model, on a free port."""
    if not (settings.model_dir / "config.json").is_file():
        raise CannotStart(f"no model at {settings.model_dir}: run `make model`")
    worker = settings.worker.model_copy(update={"vllm_port": free_port(), "max_model_len": max_model_len})
    config = settings.model_copy(update={"worker": worker})
    log = folder / "vllm.log"
    child = process.start(vllm.command(config), env=vllm.environment(config), log=log)
    try:
        deadline = time.monotonic() + _START_S
        while not _healthy(config.vllm_url):
            if child.poll() is not None or time.monotonic() > deadline:
                raise CannotStart("vLLM did not start: " + log.read_text(errors="replace")[-2000:])
            time.sleep(0.5)
        yield config
    finally:
        process.stop(child)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False
