"""Other agents behind the gateway: bytes unchanged, and what is asked of them is a hand-off in the trajectory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from evoplane.settings import Settings
from services.proxy.store import open_reader
from tests.gateway.conftest import Running, prepared, serve, user, with_sections
from tests.gateway.test_mcp import ToolServer
from tests.gateway.upstream import ScriptedUpstream


@pytest.fixture
async def agent() -> AsyncIterator[ToolServer]:
    made = ToolServer()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def gateway(tmp_path: Path, upstream: ScriptedUpstream, agent: ToolServer) -> AsyncIterator[Running]:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    settings = Settings.model_validate(
        {**settings.model_dump(exclude_unset=True), "a2a": {"billing": {"url": agent.url}}}
    )
    url, *running = await serve(settings)
    async with aiohttp.ClientSession() as http:
        made = Running(url, settings, upstream, http, secrets, open_reader(settings), connection, running)
        yield made
    await made.stop()
    connection.close()


def ask(method: str = "message/send", id: Any = 1, **params: Any) -> dict[str, Any]:
    message = {"role": "user", "messageId": "m1", "parts": [{"kind": "text", "text": "refund A-1"}]}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {"message": message}}


def task(state: str, id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"kind": "task", "id": id, "contextId": "c1", "status": {"state": state, **more}}


def answers(*results: Any, stream: bool = False, status: int = 200) -> Any:
    """Answer each request with the next result; all of them in one stream if asked to."""
    queue = list(results)

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        id = json.loads(body)["id"]
        if not stream:
            result = queue.pop(0)
            told = result if "error" in result else {"result": result}
            return web.json_response({"jsonrpc": "2.0", "id": id, **told}, status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for result in queue:
            await response.write(
                b"data: " + json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\n\n"
            )
            await asyncio.sleep(0)
        return response

    return answer


async def post(gateway: Running, message: Any, path: str = "/a2a/billing", **headers: str) -> tuple[int, bytes, Any]:
    sent = {**gateway.headers(), **headers}
    async with gateway.http.post(gateway.url + path, json=message, headers=sent) as response:
        return response.status, await response.read(), response.headers


def handoffs(gateway: Running) -> list[dict[str, Any]]:
    for row in gateway.reader.trajectories("northwind"):
        assert gateway.reader.verify("northwind", row.trajectory_id) == []
    return [record for _, record in gateway.reader.events("support", "northwind", kinds=["handoff"])[0]]


async def test_a_message_to_another_agent_is_a_handoff_of_the_session(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers(task("completed"))
    await gateway.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    status, body, headers = await post(gateway, ask(), **{"x-evoplane-session-id": "s1"})
    assert (status, json.loads(body)["result"]) == (200, task("completed"))
    (event,) = handoffs(gateway)
    assert event["id"] == headers["x-evoplane-event-id"]
    assert (event["a"]["name"], event["y"]["status"]) == ("billing", "ok")
    assert event["a"]["arguments"]["parts"][0]["text"] == "refund A-1"
    assert event["y"]["result"] == task("completed")
    assert event["replay"]["boundary"] == "external"
    assert gateway.reader.records("northwind", event["trajectory_id"])[0]["session_id"] == "s1"


@pytest.mark.parametrize(
    ("result", "status", "kind"),
    [
        ({"kind": "message", "role": "agent", "parts": []}, "ok", None),
        (task("failed", message={"parts": [{"kind": "text", "text": "no such order"}]}), "error", "task_failed"),
        (task("rejected"), "denied", "task_rejected"),
        (task("canceled"), "cancelled", None),
        (task("input-required"), "ok", None),
        (task("working"), "unknown", None),
        ({"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}}, "ok", None),
        ({"error": {"code": -32602, "message": "bad"}}, "error", "invalid_arguments"),
    ],
)
async def test_a_handoff_ends_as_the_other_agent_says(
    gateway: Running, agent: ToolServer, result: Any, status: str, kind: str | None
) -> None:
    agent.answer = answers(result)
    await post(gateway, ask())
    (event,) = handoffs(gateway)
    assert (event["y"]["status"], event["y"].get("error", {}).get("type")) == (status, kind)


async def test_a_streams_updates_add_up_to_the_task_and_pass_unchanged(gateway: Running, agent: ToolServer) -> None:
    updates = [
        task("submitted"),
        {"kind": "status-update", "taskId": "t1", "contextId": "c1", "status": {"state": "working"}},
        _artifact("Refund of "),
        _artifact("20 euros.", append=True),
        {"kind": "status-update", "taskId": "t1", "contextId": "c1", "status": {"state": "completed"}, "final": True},
    ]
    agent.answer = answers(*updates, stream=True)
    _, body, _ = await post(gateway, ask("message/stream"))
    assert [json.loads(line[6:])["result"] for line in body.split(b"\n\n") if line] == updates
    (event,) = handoffs(gateway)
    assert event["y"]["status"] == "ok"
    assert [part["text"] for part in event["y"]["result"]["artifacts"][0]["parts"]] == ["Refund of ", "20 euros."]


def _artifact(text: str, append: bool = False) -> dict[str, Any]:
    artifact = {"artifactId": "a1", "parts": [{"kind": "text", "text": text}]}
    return {"kind": "artifact-update", "taskId": "t1", "contextId": "c1", "artifact": artifact, "append": append}


async def test_a_task_that_goes_on_is_told_again_once_when_it_has_settled(gateway: Running, agent: ToolServer) -> None:
    look = {**ask("tasks/get", 2), "params": {"id": "t1"}}
    agent.answer = answers(task("working"), task("working"), task("completed"), task("completed"))
    await post(gateway, ask(), **{"x-evoplane-session-id": "s1"})
    for _ in range(3):
        await post(gateway, look)
    begun, settled = handoffs(gateway)
    assert (begun["y"]["status"], settled["y"]["status"]) == ("unknown", "ok")
    assert settled["causes"] == [{"id": begun["id"], "rel": "input"}]
    assert settled["trajectory_id"] == begun["trajectory_id"]


async def test_a_look_at_a_task_that_was_settled_at_once_tells_nothing_new(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers(task("completed"), task("completed"))
    await post(gateway, ask())
    await post(gateway, {**ask("tasks/get", 2), "params": {"id": "t1"}})
    assert len(handoffs(gateway)) == 1


async def test_a_conversation_of_agents_stays_in_the_session_it_began_in(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers(task("completed"), task("completed", "t2"), {**task("completed", "t3"), "contextId": "c2"})
    await post(gateway, ask(), **{"x-evoplane-session-id": "s1"})
    await post(gateway, ask())
    await post(gateway, ask())
    first, second, third = handoffs(gateway)
    assert first["trajectory_id"] == second["trajectory_id"] != third["trajectory_id"]


async def test_an_agent_that_is_away_is_a_jsonrpc_error_and_an_event(gateway: Running, agent: ToolServer) -> None:
    await agent.close()
    status, body, _ = await post(gateway, ask(id=7))
    assert (status, json.loads(body)["id"]) == (503, 7)
    (event,) = handoffs(gateway)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("error", "unreachable")


@pytest.mark.parametrize("signed", [False, True])
async def test_an_agents_card_leads_to_the_gateway_unless_it_is_signed(
    gateway: Running, agent: ToolServer, signed: bool
) -> None:
    card: dict[str, Any] = {
        "name": "billing", "url": agent.url,
        "additionalInterfaces": [{"url": agent.url, "transport": "JSONRPC"}, {"url": "grpc://x", "transport": "GRPC"}],
    }  # fmt: skip
    if signed:
        card["signatures"] = [{"signature": "x"}]

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        assert request.path == "/.well-known/agent-card.json"
        return web.json_response(card)

    agent.answer = answer
    url = f"{gateway.url}/a2a/billing/.well-known/agent-card.json"
    async with gateway.http.get(url, headers=gateway.headers()) as response:
        got = await response.json()
    here = f"{gateway.url}/a2a/billing"
    assert got == (
        card if signed else {**card, "url": here, "additionalInterfaces": [{"url": here, "transport": "JSONRPC"}]}
    )


async def test_an_unknown_agent_or_key_is_refused_before_anything_is_asked(gateway: Running, agent: ToolServer) -> None:
    assert (await post(gateway, ask(), path="/a2a/none"))[0] == 404
    assert (await post(gateway, ask(), authorization="Bearer wrong"))[0] == 401
    assert agent.requests == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks/get", {"id": "t1"}),
        ("GetTask", {"name": "tasks/t1"}),
        ("GetTask", {"ID": "t1"}),
        ("tasks/cancel", {"id": "t1"}),
        ("tasks/resubscribe", {"id": "t1"}),
        ("tasks/pushNotificationConfig/set", {"taskId": "t1", "pushNotificationConfig": {"url": "http://x"}}),
        ("tasks/pushNotificationConfig/get", {"id": "t1"}),
        ("message/send", {"message": {"messageId": "m", "role": "user", "taskId": "t1", "parts": []}}),
        ("message/send", {"message": {"messageId": "m", "role": "user", "contextId": "c1", "parts": []}}),
        ("message/stream", {"message": {"messageId": "m", "role": "user", "referenceTaskIds": ["t1"], "parts": []}}),
    ],
)
async def test_anothers_task_does_not_exist_and_the_agent_is_not_asked(
    gateway: Running, agent: ToolServer, method: str, params: dict[str, Any]
) -> None:
    agent.answer = answers(task("working"), task("working"))
    await post(gateway, ask())
    lumen = {"authorization": f"Bearer {gateway.secrets['lumen']}"}
    foreign = await post(gateway, {**ask(method, 2), "params": params}, **lumen)
    never = json.loads(json.dumps(params).replace('t1"', 't9"').replace('c1"', 'c9"'))
    unknown = await post(gateway, {**ask(method, 2), "params": never}, **lumen)
    assert foreign[:2] == unknown[:2]
    assert foreign[0] == 200
    told = json.loads(foreign[1])
    assert (told["id"], told["error"]["code"], told["error"]["message"]) == (2, -32001, "Task not found")
    assert len(agent.requests) == 1
    assert (await post(gateway, {**ask(method, 2), "params": params}))[0] == 200
    assert len(agent.requests) == 2, "the tenant's own passes"


@pytest.mark.parametrize(
    "body",
    [
        '{"method":"tasks/get","params":{"id":"own"},"Params":{"id":"t1"}}',
        '{"method":"tasks/get","params":{"id":"own","ID":"t1"}}',
        '{"method":"tasks/get","params":{"id":"t1","i_d":"own"}}',
        '{"method":"tasks/get","params":{"id":"t1","Id":null}}',
        '{"method":"tasks/list","Method":"tasks/get","params":{"id":"own"}}',
        '{"method":"tasks/get","params":{"id":"t1","id":"own"}}',
        '{"method":"tasks/get","params":{"id":"t1"},"params":{"id":"own"}}',
        '{"method":"tasks/get","params":{"id":"t1","\\u0069d":"own","x":"\\u003a"}}',
        '{"method":"tasks/get","METHOD":"x/pushNotificationConfig","params":{"id":"t1","taskId":"own"}}',
        '{"method":"message/send","params":{"message":{"taskId":"own","ta\\u017fkId":"t1","parts":[]}}}',
        '[{"method":"tasks/get","params":{"id":"own"}},{"method":"tasks/get","params":{"id":"own","ID":"t1"}}]',
    ],
)
async def test_no_second_spelling_of_a_name_leads_to_anothers_task(
    gateway: Running, agent: ToolServer, body: str
) -> None:
    agent.answer = answers(task("working"), task("working", "own"))
    await post(gateway, ask())
    lumen = {"authorization": f"Bearer {gateway.secrets['lumen']}"}
    await post(gateway, ask(), **lumen)
    data = body.replace('{"method"', '{"jsonrpc":"2.0","id":2,"method"')
    async with gateway.http.post(gateway.url + "/a2a/billing", data=data, headers=lumen) as response:
        assert response.status == 400
        told = await response.json()
    assert (told["error"]["code"], told["error"]["data"]["type"]) == (-32600, "ambiguous_request")
    assert len(agent.requests) == 2
    assert gateway.reader.answer("lumen", "a2a:billing:t1") is None


async def test_names_in_what_is_said_to_an_agent_may_differ_in_case(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers(task("completed"))
    message = {"role": "user", "messageId": "m1", "parts": [{"kind": "data", "data": {"id": 1, "ID": 2, "i_d": ":"}}]}
    assert (await post(gateway, ask(message=message)))[0] == 200


@pytest.mark.parametrize("id", ["t\0x", "t" * 5000, {"a": 1}, [1], 7])
async def test_a_task_of_any_id_is_a_handoff_and_its_tenants_own(gateway: Running, agent: ToolServer, id: Any) -> None:
    odd = {**task("working", id), "contextId": id}
    agent.answer = answers(odd, odd)
    status, body, _ = await post(gateway, ask())
    assert (status, json.loads(body)["result"]) == (200, odd)
    assert len(handoffs(gateway)) == 1
    if isinstance(id, str):
        look = {**ask("tasks/get", 2), "params": {"id": id}}
        assert json.loads((await post(gateway, look))[1])["result"] == odd
        lumen = {"authorization": f"Bearer {gateway.secrets['lumen']}"}
        assert json.loads((await post(gateway, look, **lumen))[1])["error"]["code"] == -32001


async def test_a_state_that_is_no_word_is_a_handoff(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers({"id": {"a": 1}, "contextId": [1], "status": {"state": {"a": 1}}})
    assert (await post(gateway, ask()))[0] == 200
    assert len(handoffs(gateway)) == 1


async def test_a_tenants_tasks_are_known_after_a_restart(gateway: Running, agent: ToolServer) -> None:
    agent.answer = answers(task("working"))
    await post(gateway, ask())
    assert gateway.reader.answer("northwind", "a2a:billing:t1") is not None
    assert gateway.reader.answer("northwind", "a2a:billing:c1") is not None
    assert gateway.reader.answer("lumen", "a2a:billing:t1") is None


async def test_an_agent_that_tenants_share_gives_no_list_and_takes_json_rpc_only(
    gateway: Running, agent: ToolServer
) -> None:
    for method in ("tasks/list", "ListTasks"):
        _, body, _ = await post(gateway, {**ask(method, 2), "params": {}})
        assert json.loads(body)["error"]["code"] == -32004
    assert (await post(gateway, ask(), path="/a2a/billing/v1/tasks/t1:cancel"))[0] == 400
    for data in ("{" + json.dumps(ask()), json.dumps(ask()).encode("utf-16")):
        async with gateway.http.post(gateway.url + "/a2a/billing", data=data, headers=gateway.headers()) as response:
            assert response.status == 400
    async with gateway.http.get(gateway.url + "/a2a/billing/v1/tasks/t1", headers=gateway.headers()) as response:
        assert response.status == 400
    assert agent.requests == []


async def test_a_tenants_own_agent_is_asked_for_anything_and_by_no_one_else(
    tmp_path: Path, upstream: ScriptedUpstream, agent: ToolServer
) -> None:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    billing = {"url": agent.url, "tenant": "northwind"}
    settings = with_sections(settings, a2a={"billing": billing})
    url, *running = await serve(settings)
    agent.answer = answers({"tasks": []}, task("working"))
    async with aiohttp.ClientSession() as http:
        made = Running(url, settings, upstream, http, secrets, open_reader(settings), connection, running)
        assert (await post(made, {**ask("tasks/list"), "params": {}}))[0] == 200
        assert (await post(made, {**ask("tasks/get"), "params": {"id": "of_elsewhere"}}))[0] == 200
        lumen = {"authorization": f"Bearer {secrets['lumen']}"}
        assert (await post(made, ask(), **lumen))[0] == 404
    await made.stop()
    connection.close()
    assert len(agent.requests) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":["t1"]}', -32602),
        (b'[[{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"t1"}}]]', -32600),
        (b'[{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"own"}},"t1"]', -32600),
    ],
)
async def test_what_is_no_message_with_named_parameters_reaches_no_shared_agent(
    gateway: Running, agent: ToolServer, body: bytes, code: int
) -> None:
    headers = {**gateway.headers(), "content-type": "application/json"}
    async with gateway.http.post(gateway.url + "/a2a/billing", data=body, headers=headers) as response:
        assert (await response.json())["error"]["code"] == code
    assert agent.requests == []
