"""Tool servers behind the gateway: bytes unchanged both ways, and each call an event where it belongs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from registry import tenants
from services.proxy.store import StoreReader
from tests.gateway.captures import captures
from tests.gateway.conftest import MODEL, Running, prepared, serve, user, with_sections
from tests.gateway.upstream import ScriptedUpstream, call

CAPTURES = captures("mcp")
HTTP = [capture for capture in CAPTURES if "request" in capture]
needs_captures = pytest.mark.skipif(not HTTP, reason="the recorded MCP traffic (../shared/captures/mcp) is not here")

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


class ToolServer:
    """A scripted MCP server that remembers what reached it."""

    def __init__(self) -> None:
        self.requests: list[tuple[web.Request, bytes]] = []
        self.answer: Answer = self._listed
        self.tools: list[dict[str, Any]] = []
        self.gone = asyncio.Event()

    async def start(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/mcp"  # type: ignore[union-attr]

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request, body))
        try:
            return await self.answer(request, body)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def _listed(self, request: web.Request, body: bytes) -> web.StreamResponse:
        message = json.loads(body)
        result: Any = {"content": [{"type": "text", "text": "ok"}]}
        if message["method"] == "tools/list":
            result = {"tools": self.tools}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.fixture
async def server() -> AsyncIterator[ToolServer]:
    made = ToolServer()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def gateway(
    tmp_path: Path, upstream: ScriptedUpstream, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setenv("CRM_TOKEN", "Bearer the-servers-own")
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    crm = {"url": server.url, "headers": {"authorization": "CRM_TOKEN"}, "effects": {"refund": "irreversible"}}
    settings = with_sections(settings, mcp={"crm": crm, "open": {"url": server.url}})
    url, *running = await serve(settings)
    async with aiohttp.ClientSession() as http:
        made = Running(url, settings, upstream, http, secrets, StoreReader(settings.store_dir), connection, running)
        yield made
    await made.stop()
    connection.close()


async def post(
    gateway: Running, message: Any, path: str = "/mcp/crm", key: str = "northwind", **headers: str
) -> tuple[int, bytes, Any]:
    sent = {**gateway.headers(key), "accept": "application/json, text/event-stream", **headers}
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    async with gateway.http.post(gateway.url + path, data=data, headers=sent) as response:
        return response.status, await response.read(), response.headers


def request(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def tool_call(name: str, id: Any = 1, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", id, name=name, arguments=arguments)


def events(gateway: Running, tenant: str = "northwind") -> list[dict[str, Any]]:
    """Every event of a tenant, in order; all chains verify."""
    for row in gateway.reader.trajectories(tenant):
        assert gateway.reader.verify(tenant, row.trajectory_id) == []
    found, _ = gateway.reader.events("support", tenant)
    return [gateway.reader.resolve(tenant, record) for _, record in found if record["record"] == "event"]


# -- the recorded traffic


def replies(recorded: list[dict[str, Any]]) -> Answer:
    """Answer each request as its recording was answered: status, type, MCP headers, chunks."""
    queue = iter(recorded)

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        reply = next(queue)["response"]
        headers = {k.lower(): v for k, v in reply["headers"]}
        kept = {k: v for k, v in headers.items() if k in ("content-type", "mcp-session-id", "cache-control")}
        response = web.StreamResponse(status=reply["status"], headers=kept)
        await response.prepare(request)
        for _, chunk in reply["chunks"]:
            await response.write(chunk.encode())
            await asyncio.sleep(0)
        return response

    return answer


@needs_captures
@pytest.mark.parametrize("scenario", sorted({capture["scenario"] for capture in HTTP}))
async def test_recorded_sessions_pass_with_the_same_bytes_both_ways(
    gateway: Running, server: ToolServer, scenario: str
) -> None:
    recorded = [capture for capture in HTTP if capture["scenario"] == scenario]
    server.answer = replies(recorded)
    for capture in recorded:
        sent, reply = capture["request"], capture["response"]
        body = b"" if sent["body"] is None else json.dumps(sent["body"], separators=(",", ":")).encode()
        wire = {k: v for k, v in sent["headers"] if k.lower() not in ("host", "connection", "content-length")}
        headers = {**wire, **gateway.headers()}
        async with gateway.http.request(
            sent["method"], f"{gateway.url}/mcp/crm", data=body or None, headers=headers
        ) as response:
            got = await response.read()
        assert response.status == reply["status"]
        assert got == b"".join(chunk.encode() for _, chunk in reply["chunks"])
        arrived, received = server.requests[-1]
        assert received == body
        for name, value in sent["headers"]:
            if name.lower().startswith("mcp-") or name.lower() in ("accept", "content-type", "user-agent"):
                assert arrived.headers[name] == value
        assert arrived.headers["authorization"] == "Bearer the-servers-own"
        for name, value in reply["headers"]:
            if name.lower() in ("content-type", "mcp-session-id"):
                assert response.headers[name] == value
    operations = [c for c in recorded if _method(c) in ("tools/call", "resources/read", "prompts/get")]
    stored = [event for event in events(gateway) if not event["kind"].startswith("x.")]
    assert len(stored) == len(operations)
    for capture, event in zip(operations, stored, strict=True):
        params = capture["request"]["body"]["params"]
        assert event["kind"] == ("tool_call" if _method(capture) == "tools/call" else "retrieval")
        if _method(capture) == "tools/call":
            assert (event["a"]["name"], event["a"]["arguments"]) == (params["name"], params.get("arguments", {}))


def _method(capture: dict[str, Any]) -> str | None:
    return (capture["request"]["body"] or {}).get("method")


@needs_captures
async def test_recorded_calls_end_as_they_ended(gateway: Running, server: ToolServer) -> None:
    recorded = [c for c in HTTP if c["scenario"] == "http-auto"]
    server.answer = replies(recorded)
    for capture in recorded:
        await post(gateway, capture["request"]["body"])
    ends = {
        (event["a"]["name"], json.dumps(event["a"].get("arguments"))): (
            event["y"]["status"],
            event["y"].get("error", {}).get("type"),
        )
        for event in events(gateway)
    }
    assert ends["add", '{"a": 1, "b": 2}'] == ("ok", None)
    assert ends["slow", '{"n": 2}'] == ("ok", None)
    assert ends["fail", '{"x": "y"}'] == ("error", "tool_error")
    assert ends["add", '{"a": "x"}'] == ("error", "invalid_arguments")
    assert ends["nope", "{}"] == ("error", "unknown_tool")
    assert ends["ask", "{}"] == ("error", "invalid_request")
    assert ends["resources/read", '{"uri": "demo://none"}'] == ("error", "invalid_arguments")
    asked = [event for event in events(gateway) if event["a"]["name"] == "ask_modern"]
    assert asked[1]["causes"] == [{"id": asked[0]["id"], "rel": "input"}]
    assert asked[1]["trajectory_id"] == asked[0]["trajectory_id"]
    assert asked[1]["ext"]["mcp"]["input_responses"]["who"]["content"] == {"name": "Ann"}


@needs_captures
async def test_what_the_server_asks_of_the_client_is_a_step_of_its_own(gateway: Running, server: ToolServer) -> None:
    """Elicitation on the call's own stream, sampling on the standing one; the answers are other requests."""
    elicit = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"message": "Name?"}}
    done = {"jsonrpc": "2.0", "id": 8, "result": {"content": [{"type": "text", "text": "hi Ann"}]}}
    sample = {"jsonrpc": "2.0", "id": 2, "method": "sampling/createMessage", "params": {"maxTokens": 16}}
    bodies = {
        name: b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"
        for name, message in (("ask", elicit), ("end", done), ("sample", sample))
    }
    told: dict[Any, asyncio.Event] = {1: asyncio.Event(), 2: asyncio.Event()}

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        if body and "method" not in json.loads(body):
            told[json.loads(body)["id"]].set()
            return web.Response(status=202)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if request.method == "GET":
            await response.write(bodies["sample"])
            await told[2].wait()
            return response
        await response.write(bodies["ask"])
        await told[1].wait()
        await told[2].wait()
        await response.write(bodies["end"])
        return response

    session = await begun(gateway, server, "m1")
    server.answer = answer

    async def standing() -> bytes:
        async with gateway.http.get(f"{gateway.url}/mcp/crm", headers={**gateway.headers(), **session}) as response:
            got = await response.content.readuntil(b"\r\n\r\n")
            answered = {"jsonrpc": "2.0", "id": 2, "result": {"role": "assistant", "model": "m"}}
            await post(gateway, answered, **session)
            return got

    async def asking() -> bytes:
        sent = {**gateway.headers(), **session}
        async with gateway.http.post(f"{gateway.url}/mcp/crm", json=tool_call("ask", 8), headers=sent) as response:
            got = await response.content.readuntil(b"\r\n\r\n")
            stream = asyncio.create_task(standing())
            answered = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {"name": "Ann"}}}
            await post(gateway, answered, **session)
            assert await stream == bodies["sample"]
            return got + await response.read()

    assert await asking() == bodies["ask"] + bodies["end"]
    found = {event["kind"]: event for event in events(gateway)}
    assert found.keys() == {"tool_call", "x.mcp.elicitation", "x.mcp.sampling"}
    assert found["x.mcp.elicitation"]["a"]["decision"] == "accept"
    assert found["x.mcp.elicitation"]["replay"]["boundary"] == "human"
    assert found["x.mcp.elicitation"]["parent_id"] == found["tool_call"]["id"]
    assert found["x.mcp.sampling"]["y"]["result"]["model"] == "m"
    assert len({event["trajectory_id"] for event in found.values()}) == 1


# -- where a call belongs


async def begun(gateway: Running, server: ToolServer, id: str, key: str = "northwind") -> dict[str, str]:
    """The header of an MCP session that the server has begun."""
    listed = server.answer

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": 0, "result": {}}, headers={"mcp-session-id": id})

    server.answer = answer
    _, _, headers = await post(gateway, request("initialize", 0), key=key)
    server.answer = listed
    return {"mcp-session-id": headers["mcp-session-id"]}


async def test_a_call_joins_the_conversation_whose_model_made_it(gateway: Running) -> None:
    for session, name in (("s1", "mcp__crm__find"), ("s2", "crm_find")):
        gateway.upstream.scripts.append(call(("c1", name, json.dumps({"who": session}))))
        await gateway.chat([user(session)], headers={"x-evoplane-session-id": session})
    asked = await gateway.chat([user("x")], headers={"x-evoplane-session-id": "s3"})
    _, _, headers = await post(gateway, tool_call("find", who="s1"))
    (event,) = [event for event in events(gateway) if event["kind"] == "tool_call"]
    assert event["id"] == headers["x-evoplane-event-id"]
    header = gateway.reader.records("northwind", event["trajectory_id"])[0]
    assert header["session_id"] == "s1"
    assert event["a"] == {"name": "mcp__crm__find", "call_id": "c1", "arguments": {"who": "s1"}}
    assert event["causes"][0]["rel"] == "decided_by"
    assert event["ext"]["mcp"]["tool"] == "find"
    assert asked.status == 200


async def test_the_result_that_comes_back_in_the_next_request_is_not_a_second_event(gateway: Running) -> None:
    gateway.upstream.scripts.append(call(("c1", "find", "{}")))
    headers = {"x-evoplane-session-id": "s1"}
    first = await gateway.chat([user("hi")], headers=headers)
    await post(gateway, tool_call("find"))
    answer = (await first.json())["choices"][0]["message"]
    again = await gateway.chat(
        [user("hi"), answer, {"role": "tool", "tool_call_id": "c1", "content": "ok"}], headers=headers
    )
    assert [record.get("kind") for record in gateway.chain(again)] == [
        None, "user_message", "llm_call", "tool_call", "llm_call",
    ]  # fmt: skip


async def test_equal_calls_at_the_same_time_are_each_of_the_models_calls_once(gateway: Running) -> None:
    gateway.upstream.scripts.append(call(*((f"c{number}", "find", "{}") for number in range(4))))
    await gateway.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    await asyncio.gather(*(post(gateway, tool_call("find", number)) for number in range(4)))
    found = [event for event in events(gateway) if event["kind"] == "tool_call"]
    assert sorted(event["a"]["call_id"] for event in found) == ["c0", "c1", "c2", "c3"]
    assert len({event["trajectory_id"] for event in found}) == 1


@pytest.mark.parametrize("mark", ["header", "path"])
async def test_a_call_that_names_its_session_goes_there(gateway: Running, mark: str) -> None:
    tagged = "/s/s1" if mark == "path" else ""
    headers = {} if tagged else {"x-evoplane-session-id": "s1"}
    chat = {"model": MODEL, "messages": [user("hi")]}
    url = f"{gateway.url}{tagged}/v1/chat/completions"
    async with gateway.http.post(url, json=chat, headers={**gateway.headers(), **headers}) as response:
        await response.read()
    await post(gateway, tool_call("find"), path=f"{tagged}/mcp/crm", **headers)
    trajectories = {event["trajectory_id"] for event in events(gateway)}
    assert len(trajectories) == 1


async def test_an_mcp_session_stays_with_the_conversation_it_was_bound_to(gateway: Running, server: ToolServer) -> None:
    m1, m2 = [await begun(gateway, server, id) for id in ("m1", "m2")]
    gateway.upstream.scripts.append(call(("c1", "find", "{}")))
    await gateway.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    for _ in range(2):
        await post(gateway, tool_call("find"), **m1)
    await post(gateway, tool_call("find"), **m2)
    tools = [event for event in events(gateway) if event["kind"] == "tool_call"]
    assert tools[0]["trajectory_id"] == tools[1]["trajectory_id"] != tools[2]["trajectory_id"]


async def test_another_tenants_mcp_session_does_not_exist(gateway: Running, server: ToolServer) -> None:
    m1 = await begun(gateway, server, "m1")
    assert (await post(gateway, tool_call("find"), **m1))[0] == 200
    for session in (m1, {"mcp-session-id": "never"}, {"Mcp_Session_Id": "m1"}):
        status, body, _ = await post(gateway, tool_call("find"), key="lumen", **session)
        assert (status, json.loads(body)["error"]["message"]) == (404, "Session not found.")
    assert len(server.requests) == 2
    assert gateway.reader.tenants() == ["northwind"]


@pytest.mark.parametrize("id", ["m1", "m" * 5000, "n\u00fc"])
async def test_an_mcp_session_is_its_tenants_after_a_restart(gateway: Running, server: ToolServer, id: str) -> None:
    session = await begun(gateway, server, id)
    await gateway.stop()
    gateway.url, *gateway.server = await serve(gateway.settings)
    assert (await post(gateway, tool_call("find"), key="lumen", **session))[0] == 404
    gateway.secrets["evaluate"] = tenants.create_key(gateway.connection, "northwind", "support", "evaluate")[1]
    await gateway.wait_for_control()
    assert (await post(gateway, tool_call("find"), key="evaluate", **session))[0] == 404
    assert len(server.requests) == 1
    assert (await post(gateway, tool_call("find"), **session))[0] == 200


async def test_a_request_names_one_mcp_session(gateway: Running, server: ToolServer) -> None:
    own = await begun(gateway, server, "own", key="lumen")
    headers = [*gateway.headers("lumen").items(), ("mcp-session-id", "m1"), *own.items()]
    async with gateway.http.post(gateway.url + "/mcp/crm", json=tool_call("find"), headers=headers) as response:
        assert response.status == 400
    assert len(server.requests) == 1


async def test_what_the_server_gave_back_for_later_is_another_tenants_no_more_than_its_session(
    gateway: Running, server: ToolServer
) -> None:
    async def asks(request: web.Request, body: bytes) -> web.StreamResponse:
        wants = {"resultType": "input_required", "requestState": "s", "inputRequests": {}}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": wants})

    server.answer = asks
    again = request("tools/call", name="find", arguments={}, requestState="s")
    await post(gateway, tool_call("find"))
    await post(gateway, again, key="lumen")
    await post(gateway, again, path="/mcp/open")
    await post(gateway, again)
    (foreign,) = events(gateway, "lumen")
    first, elsewhere, second = events(gateway)
    assert "causes" not in foreign
    assert "causes" not in elsewhere
    assert second["causes"] == [{"id": first["id"], "rel": "input"}]


# -- what is known of a tool


async def test_a_call_carries_the_tools_schema_as_last_listed_and_what_it_may_change(
    gateway: Running, server: ToolServer
) -> None:
    server.tools = [
        {"name": "find", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
        {"name": "book", "annotations": {"idempotentHint": True, "openWorldHint": True}},
        {"name": "drop", "annotations": {"destructiveHint": True, "idempotentHint": True}},
        {"name": "refund", "annotations": {"readOnlyHint": True}},
        {"name": "plain"},
    ]
    await post(gateway, tool_call("find"))
    await post(gateway, request("tools/list"))
    for tool in ("find", "book", "drop", "refund", "plain"):
        await post(gateway, tool_call(tool))
    unlisted, *found = events(gateway)
    claims = {e["a"]["name"]: (e["replay"]["effect"], e["replay"]["boundary"]) for e in found}
    assert claims == {
        "find": ("read", "tenant"),
        "book": ("idempotent_write", "external"),
        "drop": ("irreversible", "tenant"),
        "refund": ("irreversible", "tenant"),  # configuration overrules the server
        "plain": ("write", "tenant"),
    }
    assert gateway.reader.tools("northwind", unlisted["ctx"]) == []
    for event, tool in zip(found, server.tools, strict=True):
        assert gateway.reader.tools("northwind", event["ctx"]) == [tool]


# -- failures


async def test_a_server_that_is_away_is_a_jsonrpc_error_and_an_event(gateway: Running, server: ToolServer) -> None:
    await server.close()
    status, body, _ = await post(gateway, tool_call("find", 7))
    answer = json.loads(body)
    assert (status, answer["id"], answer["error"]["data"]["type"]) == (503, 7, "upstream_unreachable")
    assert re.fullmatch(
        r"The tool server '\w+' \(127\.0\.0\.1:\d+\) can't be reached: Connection refused\.", answer["error"]["message"]
    )
    (event,) = events(gateway)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("error", "unreachable")


async def test_a_stream_that_breaks_off_is_not_ended_cleanly_and_the_call_is_truncated(
    gateway: Running, server: ToolServer
) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"jsonrpc":"2.0","method":"notifications/progress"}\n\n')
        assert request.transport is not None
        request.transport.close()
        return response

    server.answer = answer
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(gateway, tool_call("find"))
    (event,) = events(gateway)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("truncated", "stream_truncated")


async def test_a_client_that_leaves_cancels_the_call_at_the_server(gateway: Running, server: ToolServer) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    server.answer = answer
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(post(gateway, tool_call("find")), 0.3)
    async with asyncio.timeout(5):
        await server.gone.wait()
        while not (gateway.reader.tenants() and events(gateway)):
            await asyncio.sleep(0.02)
    (event,) = events(gateway)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("cancelled", "client_disconnected")


async def test_an_unknown_server_or_key_is_refused_before_anything_is_asked(
    gateway: Running, server: ToolServer
) -> None:
    assert (await post(gateway, tool_call("find"), path="/mcp/none"))[0] == 404
    assert (await post(gateway, tool_call("find"), authorization="Bearer wrong"))[0] == 401
    assert server.requests == []


@pytest.mark.parametrize("below", ["../admin", "%2e%2e/admin", "..%2fadmin", "a/..;x/b", "..%5cadmin", "./a"])
async def test_no_path_leads_out_from_below_a_server(gateway: Running, server: ToolServer, below: str) -> None:
    url = URL(f"{gateway.url}/mcp/crm/{below}", encoded=True)
    async with gateway.http.post(url, json=tool_call("find"), headers=gateway.headers()) as response:
        assert response.status == 404
    assert server.requests == []


@pytest.mark.parametrize("below", ["a%3Fq=1", "a%20b", "a%23b", "%252e%252e/b", "a@b:c", "%C3%A9"])
async def test_a_path_below_a_server_stays_what_it_is(gateway: Running, server: ToolServer, below: str) -> None:
    url = URL(f"{gateway.url}/mcp/crm/{below}", encoded=True)
    async with gateway.http.post(url, json=tool_call("find"), headers=gateway.headers()) as response:
        assert response.status == 200
    assert server.requests[0][0].raw_path == f"/mcp/{below}"


async def test_a_call_in_which_a_name_stands_twice_is_refused(gateway: Running, server: ToolServer) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"drop","n\\u0061me":"find","arguments":{}}}'
    status, told, _ = await post(gateway, body)
    assert (status, json.loads(told)["id"], json.loads(told)["error"]["code"]) == (400, 1, -32600)
    assert server.requests == []


@pytest.mark.parametrize("location", ["http://[bad", "mailto:x", "http://h:99999/", "/mcp"])
async def test_a_redirect_to_nowhere_is_a_broken_answer_and_an_event(
    gateway: Running, server: ToolServer, location: str
) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": location})

    server.answer = answer
    status, body, _ = await post(gateway, tool_call("find"))
    assert (status, json.loads(body)["error"]["data"]["type"]) == (502, "upstream_broken")
    (event,) = events(gateway)
    assert event["y"]["status"] == "truncated"


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
async def test_a_stream_that_is_not_what_its_encoding_says_leaves_an_event(
    gateway: Running, server: ToolServer, encoding: str
) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "content-encoding": encoding}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        return response

    server.answer = answer
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(gateway, tool_call("find"))
    (event,) = events(gateway)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("truncated", "stream_truncated")


async def test_a_header_that_no_server_could_send_is_left_out_of_the_answer(
    gateway: Running, server: ToolServer
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode()

    async def answer(request: web.Request, _: bytes) -> web.StreamResponse:
        assert request.transport is not None
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-a: a\x01b\r\nmcp-session-id: a\x01b\r\nx-b: c\r\n"
        )
        request.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0.2)
        return web.Response()

    server.answer = answer
    status, got, headers = await post(gateway, tool_call("find"))
    assert (status, got, headers["x-b"]) == (200, body, "c")
    assert "x-a" not in headers
    assert "mcp-session-id" not in headers


async def test_a_clients_own_credential_reaches_a_server_that_has_none_configured(
    gateway: Running, server: ToolServer
) -> None:
    own = {"x-evoplane-key": gateway.secrets["northwind"], "authorization": "Bearer users-own"}
    assert (await post(gateway, tool_call("find"), path="/mcp/open", **own))[0] == 200
    assert (await post(gateway, tool_call("find"), path="/mcp/open"))[0] == 200
    assert (await post(gateway, tool_call("find"), **own))[0] == 200
    with_own, without, configured = (arrived.headers for arrived, _ in server.requests)
    assert with_own["authorization"] == "Bearer users-own"
    assert "authorization" not in without
    assert configured["authorization"] == "Bearer the-servers-own"
    assert not any(name.lower().startswith("x-evoplane") for arrived, _ in server.requests for name in arrived.headers)


async def test_a_batch_and_ids_of_either_type_are_matched_each_to_its_own(gateway: Running, server: ToolServer) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        results = [
            {"jsonrpc": "2.0", "id": message["id"], "result": {"for": message["params"]["arguments"]["n"]}}
            for message in reversed(json.loads(body))
        ]
        return web.json_response(results)

    server.answer = answer
    await post(gateway, [tool_call("t", 1, n=1), tool_call("t", "1", n=2), tool_call("t", 2, n=3)])
    assert sorted((e["a"]["arguments"]["n"], e["y"]["result"]["for"]) for e in events(gateway)) == [
        (1, 1), (2, 2), (3, 3),
    ]  # fmt: skip


async def test_a_key_of_another_purpose_leaves_its_calls_with_its_own(gateway: Running) -> None:
    gateway.secrets["evaluate"] = tenants.create_key(gateway.connection, "northwind", "support", "evaluate")[1]
    await gateway.wait_for_control()
    gateway.upstream.scripts.append(call(("c1", "find", "{}")))
    await gateway.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    await post(gateway, tool_call("find"), key="evaluate")
    (tool,) = [event for event in events(gateway) if event["kind"] == "tool_call"]
    assert "causes" not in tool
    assert gateway.reader.records("northwind", tool["trajectory_id"])[0]["ext"]["purpose"] == "evaluate"
