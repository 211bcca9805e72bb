"""AReaL's way of collecting rollouts: sessions with keys of their own, rewards, exports; and nothing lost."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import pytest

from registry import tenants
from tests.gateway.conftest import MODEL, Running, serve, user
from tests.gateway.upstream import ScriptedUpstream, completion, say


def numbered() -> Any:
    """Answers with an id of its own each time."""
    count = iter(range(1, 1000))

    async def script(upstream: ScriptedUpstream, request: Any, body: dict[str, Any]) -> Any:
        from aiohttp import web

        return web.json_response({**completion(body, {"content": "hello"}), "id": f"chatcmpl-{next(count)}"})

    return script


async def post(running: Running, path: str, body: Any = None, secret: str | None = None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {secret or running.secrets['northwind']}"}
    async with running.http.post(running.url + path, json={} if body is None else body, headers=headers) as response:
        return response.status, await response.json()


async def start(running: Running, **body: Any) -> dict[str, Any]:
    status, told = await post(running, "/rl/start_session", {"task_id": "task", **body})
    assert status == 201
    return told  # type: ignore[no-any-return]


async def chat(running: Running, secret: str, *turns: str) -> list[dict[str, Any]]:
    """A conversation under a session's key; gives the answers."""
    messages: list[dict[str, Any]] = []
    answers = []
    for turn in turns:
        messages.append(user(turn))
        status, answer = await post(running, "/v1/chat/completions", {"model": MODEL, "messages": messages}, secret)
        assert status == 200
        answers.append(answer)
        messages.append(answer["choices"][0]["message"])
    return answers


def rewards(running: Running) -> list[dict[str, Any]]:
    return [record for _, record in running.reader.events("support", "northwind", kinds=["reward"])[0]]


async def test_a_sessions_key_puts_every_request_into_its_session(running: Running) -> None:
    one, other = await start(running), await start(running)
    assert (one["session_id"], other["session_id"]) == ("task-0", "task-1")
    for session in (one, other):
        await chat(running, session["api_key"], "hi", "more")
    rows = running.reader.trajectories("northwind")
    assert sorted((row.session_id, row.events) for row in rows) == [("task-0", 4), ("task-1", 4)]


async def test_a_rewarded_session_is_exported_with_its_tokens_and_discounted_rewards(running: Running) -> None:
    running.upstream.default = numbered()
    session = await start(running)
    first, second = await chat(running, session["api_key"], "hi", "more")
    assert await post(running, "/rl/set_reward", {"reward": 1.0}, session["api_key"]) == (200, {"message": "success"})
    status, told = await post(running, "/rl/end_session", {}, session["api_key"])
    assert (status, told) == (200, {"message": "success", "interaction_count": 2})
    status, told = await post(running, "/export_trajectories", {"session_id": "task-0", "discount": 0.5})
    assert status == 200
    found = told["interactions"]
    assert list(found) == [first["id"], second["id"]]
    assert [found[id]["reward"] for id in found] == [0.5, 1.0]
    tensors = found[second["id"]]["tensor_dict"]
    ids = array("q", base64.b64decode(tensors["input_ids"]["data"])).tolist()
    mask = array("q", base64.b64decode(tensors["loss_mask"]["data"])).tolist()
    assert (ids[-3:], mask[-3:], sum(mask)) == ([7, 8, 2], [1, 1, 1], 3)
    assert tensors["input_ids"] == {
        **tensors["input_ids"],
        "type": "tensor",
        "shape": [1, len(ids)],
        "dtype": "torch.int64",
    }
    logprobs = array("f", base64.b64decode(tensors["logprobs"]["data"])).tolist()
    assert logprobs[-3:] == [-0.25] * 3
    assert array("f", base64.b64decode(tensors["rewards"]["data"])).tolist() == [1.0]
    assert running.reader.trajectories("northwind")[0].closed == "outcome"


async def test_a_second_reward_supersedes_the_first_and_both_stay(running: Running) -> None:
    running.upstream.default = numbered()
    session = await start(running)
    first, _ = await chat(running, session["api_key"], "hi", "more")
    for reward in (0.0, 1.0, 1.0):
        body = {"interaction_id": first["id"], "reward": reward}
        assert (await post(running, "/rl/set_reward", body, session["api_key"]))[0] == 200
    kept = rewards(running)
    assert [(each["value"], each.get("supersedes")) for each in kept] == [(0.0, None), (1.0, kept[0]["id"])]
    _, told = await post(running, "/export_trajectories", {"session_id": "task-0"})
    assert told["interactions"][first["id"]]["reward"] == 1.0


async def test_an_export_is_given_again_until_its_cursor_is_acknowledged(running: Running) -> None:
    sessions = [await start(running) for _ in range(3)]
    for session in reversed(sessions):
        await chat(running, session["api_key"], "hi")
        await post(running, "/rl/end_session", {}, session["api_key"])
    ask = {"consumer": "trainer", "limit": 2}
    for _ in range(2):
        _, told = await post(running, "/export_trajectories", ask)
        assert [each["session_id"] for each in told["sessions"]] == ["task-2", "task-1"]
    _, rest = await post(running, "/export_trajectories", {**ask, "ack": told["cursor"]})
    assert [each["session_id"] for each in rest["sessions"]] == ["task-0"]
    _, none = await post(running, "/export_trajectories", {**ask, "ack": rest["cursor"]})
    assert (none["sessions"], none["interactions"]) == ([], {})
    _, other = await post(running, "/export_trajectories", {"consumer": "another"})
    assert len(other["sessions"]) == 3


async def test_a_key_is_good_after_export_and_after_a_restart(running: Running) -> None:
    session = await start(running)
    await chat(running, session["api_key"], "hi")
    await post(running, "/rl/end_session", {}, session["api_key"])
    await post(running, "/export_trajectories", {"session_id": "task-0"})
    await running.stop()
    running.url, *running.server = await serve(running.settings)
    await chat(running, session["api_key"], "hi again")
    assert (await post(running, "/rl/set_reward", {"reward": 0.5}, session["api_key"]))[0] == 200
    assert {row.session_id for row in running.reader.trajectories("northwind")} == {"task-0"}


async def test_a_key_goes_on_to_the_next_session_once_its_session_has_ended(running: Running) -> None:
    first = await start(running)
    status, told = await post(running, "/rl/start_session", {"task_id": "task", "api_key": first["api_key"]})
    assert (status, "task-0" in told["error"]["message"]) == (409, True)
    await post(running, "/rl/end_session", {}, first["api_key"])
    second = await start(running, api_key=first["api_key"])
    assert (second["session_id"], second["api_key"]) == ("task-1", first["api_key"])
    await chat(running, first["api_key"], "hi")
    assert [row.session_id for row in running.reader.trajectories("northwind")] == ["task-1"]
    assert (await post(running, "/rl/start_session", {"task_id": "t", "api_key": "evs_guess"}))[0] == 400


async def test_a_group_is_begun_together(running: Running) -> None:
    told = await start(running, group_size=3)
    assert [each["session_id"] for each in told["sessions"]] == ["task-0", "task-1", "task-2"]
    assert len({each["api_key"] for each in told["sessions"]}) == 3
    assert told["group_id"]


async def test_what_may_not_be_trained_on_is_not_exported(running: Running) -> None:
    status, told = await post(running, "/rl/start_session", {"task_id": "task"}, running.secrets["lumen"])
    await chat(running, told["api_key"], "hi")
    status, told = await post(running, "/export_trajectories", {"session_id": "task-0"}, running.secrets["lumen"])
    assert (status, told["interactions"], told["sessions"][0]["withheld"]) == (200, {}, 1)


async def test_another_tenants_sessions_do_not_exist(running: Running) -> None:
    session = await start(running)
    await chat(running, session["api_key"], "hi")
    assert (await post(running, "/export_trajectories", {"session_id": "task-0"}, running.secrets["lumen"]))[0] == 404
    _, told = await post(running, "/export_trajectories", {"consumer": "c"}, running.secrets["lumen"])
    assert told["sessions"] == []


async def test_a_sessions_key_may_neither_start_sessions_nor_export(running: Running) -> None:
    session = await start(running)
    assert (await post(running, "/rl/start_session", {}, session["api_key"]))[0] == 403
    assert (await post(running, "/export_trajectories", {"session_id": "task-0"}, session["api_key"]))[0] == 403


async def test_a_revoked_key_takes_its_sessions_keys_with_it(running: Running) -> None:
    key, secret = tenants.create_key(running.connection, "northwind", "support")
    await running.wait_for_control()
    _, told = await post(running, "/rl/start_session", {"task_id": "task"}, secret)
    tenants.revoke_key(running.connection, key.id)
    await running.wait_for_control()
    status, _ = await post(running, "/v1/chat/completions", {"model": MODEL, "messages": [user("x")]}, told["api_key"])
    assert status == 401


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"reward": 1}, 400, "No interactions"),
        ({"reward": "much"}, 400, "reward"),
        ({}, 400, "reward"),
    ],
)
async def test_a_reward_that_can_not_be_is_refused(running: Running, body: Any, status: int, word: str) -> None:
    session = await start(running)
    got, told = await post(running, "/rl/set_reward", body, session["api_key"])
    assert (got, word in told["error"]["message"]) == (status, True)


async def test_a_reward_for_an_unknown_interaction_is_refused(running: Running) -> None:
    running.upstream.default = say("hello")
    session = await start(running)
    await chat(running, session["api_key"], "hi")
    status, told = await post(running, "/rl/set_reward", {"reward": 1, "interaction_id": "x"}, session["api_key"])
    assert (status, told["error"]["message"]) == (400, "Interaction x not found")
    assert (await post(running, "/rl/set_reward", {"reward": 1}, running.secrets["northwind"]))[0] == 401
