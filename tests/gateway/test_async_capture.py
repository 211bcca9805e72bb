"""`gateway.capture = "async"`: answers don't wait for the log, and what goes on from them belongs together."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from services.gateway import core
from services.gateway.unconfirmed import Unconfirmed
from services.proxy.dialects import RESPONSES
from services.proxy.drafts import StoreUnavailable
from services.proxy.store import EventStore
from tests.gateway.conftest import Running, user
from tests.gateway.upstream import reply, say

pytestmark = pytest.mark.parametrize("running", [{"capture": "async"}], indirect=True)

ANSWER = {"role": "assistant", "content": "hello"}


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load an exchange is recorded that much later."""
    monkeypatch.setattr(core, "_GATHER_S", 0.15)


async def stored(running: Running, *ids: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(5):
        while None in (found := [running.reader.record("northwind", id) for id in ids]):
            await asyncio.sleep(0.01)
    return [record for record in found if record is not None]


@pytest.mark.parametrize("named", [True, False])
async def test_a_turn_that_comes_before_the_one_before_it_is_stored_goes_on_in_its_trajectory(
    running: Running, named: bool
) -> None:
    headers = {"x-evoplane-session-id": "s"} if named else {}
    said, ids = [user("hi")], []
    for turn in range(4):
        response = await running.chat(said, headers=headers)
        ids.append(response.headers["x-evoplane-event-id"])
        said += [ANSWER, user(f"more {turn}")]
    calls = await stored(running, *ids)
    assert len({call["trajectory_id"] for call in calls}) == 1
    assert [call["o"]["messages"]["prefix"] for call in calls[1:]] == ids[:-1]
    assert [call["step"] for call in calls] == [1, 2, 3, 4]
    kinds = [record["kind"] for record in running.reader.records("northwind", calls[0]["trajectory_id"])[1:]]
    assert kinds == ["user_message", "llm_call"] * 4


async def test_an_answer_named_before_it_is_stored_is_known(running: Running) -> None:
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}]
    answer = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-1", "output": said}
    running.upstream.default = reply(200, orjson.dumps(answer))
    first = await running.post("/v1/responses", {"model": "gpt-1", "input": "hi"})
    second = await running.post("/v1/responses", {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"})
    assert (first.status, second.status) == (200, 200)
    one, two = await stored(running, *(r.headers["x-evoplane-event-id"] for r in (first, second)))
    assert one["trajectory_id"] == two["trajectory_id"]
    assert one["ext"]["dialect"] == RESPONSES.name


async def test_a_new_conversation_waits_for_no_other(running: Running) -> None:
    began = asyncio.get_running_loop().time()
    for number in range(5):
        await running.chat([user(f"hi {number}")])
    assert asyncio.get_running_loop().time() - began < 0.15


async def test_after_an_exchange_that_was_lost_its_conversation_is_told_anew(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: EventStore, tenant: str, drafts: Any) -> Any:
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "submit", lose)
        await running.chat([user("hi")])
        await asyncio.sleep(0.2)
    response = await running.chat([user("hi"), ANSWER, user("more")])
    (call,) = await stored(running, response.headers["x-evoplane-event-id"])
    assert [message["role"] for message in call["o"]["messages"]] == ["user", "assistant", "user"]


async def test_nobody_waits_for_ever(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unconfirmed, "PATIENCE_S", 0.05)
    running.upstream.default = say("hello")
    await running.chat([user("hi")])
    response = await running.chat([user("hi"), ANSWER, user("more")])
    assert response.status == 200
    await stored(running, response.headers["x-evoplane-event-id"])
