"""Traces a second that a real MLflow server takes over OTLP, its fastest way in.

A trace is one model call: one span with the same question and answer as an event of the store's benchmark.
Four clients post batches of 20 spans of as many traces (protobuf) to `POST /v1/traces`; the server runs with
one worker on SQLite, as the stack runs it, its telemetry and job runner off.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from benchmarks.group_commit import turn
from evoplane.stack.environment import QUIET

CLIENTS = 4
BATCH = 20
TRACES = 2000

_START_S = 180.0


def mlflow_traces(traces: int = TRACES) -> dict[str, float]:
    """`mlflow_traces_per_s`."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as url:
        return {"mlflow_traces_per_s": round(asyncio.run(_measure(url, traces)), 1)}


async def _measure(url: str, traces: int) -> float:
    headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": "0"}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def client(batches: list[bytes]) -> None:
            for batch in batches:
                async with http.post(f"{url}/v1/traces", data=batch) as response:
                    response.raise_for_status()

        await client([_batch()])  # the first one makes what is made only once
        shares = [[_batch() for _ in range(traces // BATCH // CLIENTS)] for _ in range(CLIENTS)]
        started = time.perf_counter()
        await asyncio.gather(*(client(share) for share in shares))
        return sum(map(len, shares)) * BATCH / (time.perf_counter() - started)


def _batch() -> bytes:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(BATCH):
        spans.append(_span(number))
    return request.SerializeToString()


def _span(number: int) -> Span:
    question, answer = turn("tr", number)
    now = time.time_ns()
    span = Span(
        trace_id=secrets.token_bytes(16),
        span_id=secrets.token_bytes(8),
        name="chat gpt-4o-mini",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=now - 812_250_000,
        end_time_unix_nano=now,
        status=Status(code=Status.STATUS_CODE_OK),
    )
    texts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.input.messages": orjson.dumps([_message(question.o.messages[0])]).decode(),  # type: ignore[union-attr, index]
        "gen_ai.output.messages": orjson.dumps([_message(answer.a.messages[0])]).decode(),  # type: ignore[union-attr, index]
    }
    for key, text in texts.items():
        span.attributes.add(key=key).value.string_value = text
    for key, value in {"gen_ai.usage.input_tokens": 211, "gen_ai.usage.output_tokens": 170}.items():
        span.attributes.add(key=key).value.int_value = value
    return span


def _message(message: object) -> dict[str, object]:
    return msgspec.to_builtins(message)


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    port = _free_port()
    log = (folder / "log").open("wb")
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder / "artifacts")),
    ]
    environment = {**os.environ, **QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(_until_healthy(url, server))
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
        log.close()


async def _until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(_START_S):
        while True:
            try:
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if server.poll() is not None:
                raise RuntimeError(f"MLflow ended with status {server.returncode}")
            await asyncio.sleep(0.25)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
