"""Ids, kinds and names from outside are stored only in a form that holds no secret."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Running
from tests.gateway.test_rl import post
from tests.proxy.at_rest import every_byte

SECRET = "sk-proj-q001abcdefghijklmnopqrstuvwxyz0123456789abcdefgh"
STEP = {"kind": "tool_call", "session_id": "s1", "name": "f"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"span_id": SECRET},
        {"span_id": "0" * 33},
        {"parent_id": SECRET},
        {"parent_id": "ev_" + SECRET},
        {"causes": [{"id": SECRET, "rel": "input"}]},
        {"kind": "x." + SECRET},
    ],
)
async def test_an_event_whose_ids_or_kind_are_none_is_refused(running: Running, wrong: dict[str, Any]) -> None:
    response = await running.report({**STEP, **wrong})
    assert response.status == 400
    assert SECRET.encode() not in every_byte(running.settings.var)


async def test_an_event_names_spans_and_events_by_their_ids(running: Running) -> None:
    for kind in ("tool_call", "x.checked"):
        first = await (await running.report({**STEP, "id": "a"})).json()
        fresh = "ev_019b2c3d-4e5f-7a6b-8c7d-9e8f0a1b2c3d"
        causes = [{"id": fresh, "rel": "input"}]
        more = {"kind": kind, "span_id": "b7ad6b7169203331", "parent_id": first["id"], "causes": causes}
        assert (await running.report({**STEP, **more})).status == 202


@pytest.mark.parametrize("target", ["event_id", "trajectory_id", "session_id"])
async def test_what_a_waiting_signal_is_about_holds_no_secret(running: Running, target: str) -> None:
    response = await running.feedback({target: SECRET, "name": "thumb", "value": 1})
    assert response.status == 202
    assert SECRET.encode() not in every_byte(running.settings.var)


async def test_tasks_and_consumers_of_rollouts_hold_no_secret(running: Running) -> None:
    secret = running.secrets["northwind"]
    status, told = await post(running, "/rl/start_session", {"task_id": SECRET}, secret)
    assert status == 201
    assert SECRET not in told["session_id"]
    body = {"model": "gpt-1", "messages": [{"role": "user", "content": "hi"}]}
    await post(running, "/v1/chat/completions", body, told["api_key"])
    assert (await post(running, "/rl/end_session", {}, told["api_key"]))[0] == 200
    status, exported = await post(running, "/export_trajectories", {"consumer": SECRET, "ack": 0}, secret)
    assert status == 200
    assert [session["session_id"] for session in exported["sessions"]] == [told["session_id"]]
    assert SECRET.encode() not in every_byte(running.settings.var)
