"""Connections between requests: a client that kept one for as long as clients do must be able to use it."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

import pytest

from tests.gateway.conftest import prepared
from tests.gateway.test_crash import Process, free_port

_LONGEST_POOL_S = 5.0
"""httpx and so the OpenAI and Anthropic SDKs; uvicorn's own time is the same, and then both race."""


@pytest.mark.stack
async def test_a_connection_that_a_client_kept_between_requests_still_works(tmp_path: Path) -> None:
    port = free_port()
    process = Process(prepared(tmp_path, free_port())[0], port)
    try:
        await process.ready()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        first = connection.sock
        time.sleep(_LONGEST_POOL_S + 0.5)
        connection.request("POST", "/v1/chat/completions", body=b"{}")
        answer = connection.getresponse()
        assert (answer.status, connection.sock) == (401, first)
    finally:
        process.kill()
