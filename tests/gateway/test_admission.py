"""Rollouts are refused when training wants none; users never are."""

from __future__ import annotations

from registry import admission
from registry.admission import Admission
from tests.gateway.conftest import Running, user

ONLY_TRAINS = {"x-evoplane-training": "only"}


async def say(running: Running, open: bool) -> None:
    wait = Admission(agent="support", open=open, retry_after_s=7, why="enough of them wait")
    admission.put(running.connection, wait)
    await running.wait_for_control()


async def test_a_client_that_only_trains_is_asked_to_wait_and_a_user_is_served(running: Running) -> None:
    await say(running, open=False)
    refused = await running.chat([user("one")], headers=ONLY_TRAINS)
    assert (refused.status, refused.headers["retry-after"]) == (429, "7")
    assert (await refused.json())["error"]["code"] == "rollouts_wait"
    assert (await running.chat([user("one")])).status == 200
    await say(running, open=True)
    assert (await running.chat([user("one")], headers=ONLY_TRAINS)).status == 200


async def test_a_rollout_that_has_begun_goes_on(running: Running) -> None:
    first = await running.chat([user("begin")], headers=ONLY_TRAINS)
    said = (await first.json())["choices"][0]["message"]
    await say(running, open=False)
    second = await running.chat([user("begin"), said, user("go on")], headers=ONLY_TRAINS)
    assert second.status == 200
