"""Watching for a client that leaves: it ends with the answer, and cancels nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.gateway.asgi import ClientGone, Request


def _request(gone: asyncio.Event) -> Request:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    return Request(scope, receive)


async def test_behind_an_answer_the_watch_has_ended_by_itself() -> None:
    over = asyncio.Event()
    request = _request(over)
    assert await request.unless_gone(asyncio.sleep(0, "answer")) == "answer"
    watch = request.watch()
    over.set()  # as the server does with an answer's last byte
    request.stop_watching()
    await asyncio.sleep(0)
    assert watch.done() and not watch.cancelled()


async def test_a_watch_that_does_not_end_by_itself_is_cancelled() -> None:
    request = _request(asyncio.Event())
    watch = request.watch()
    await asyncio.sleep(0)
    request.stop_watching()
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_work_for_a_client_that_left_is_given_up() -> None:
    left = asyncio.Event()
    request = _request(left)
    asyncio.get_running_loop().call_later(0.01, left.set)
    with pytest.raises(ClientGone):
        await request.unless_gone(asyncio.sleep(30))
