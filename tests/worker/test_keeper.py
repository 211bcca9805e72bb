"""The server that is kept alive: whatever stops it, another is started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evoplane.settings import Settings
from services.worker import process
from services.worker.serving.vllm import VllmServer


async def nothing() -> None:
    return


@pytest.mark.parametrize("error", [BlockingIOError(11, "Resource temporarily unavailable"), RuntimeError("no thread")])
async def test_a_machine_without_a_process_to_spare_is_asked_again(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([error])

    def refused_once(*_: object, **how: Any) -> subprocess.Popen[bytes]:
        for refusal in refusals:
            raise refusal
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

    monkeypatch.setattr(process, "start", refused_once)
    monkeypatch.setattr(process.Backoff, "next_wait_s", lambda _: 0.01)
    monkeypatch.setattr(VllmServer, "_until_up", lambda *_: nothing())
    settings = Settings.model_validate({"paths": {"var": tmp_path}})
    settings.logs_dir.mkdir(parents=True)
    server = VllmServer(settings, nothing)
    server.start()
    try:
        async with asyncio.timeout(20):
            while server.state != "serving":
                await asyncio.sleep(0.01)
        assert server.restarts == 1 and server.pid is not None
        assert str(error.args[-1]) in server.log.read_text()
    finally:
        await server.close()
