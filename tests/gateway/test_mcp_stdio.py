"""`evoplane mcp wrap`: a stdio tool server behaves as without it, and its calls are in the trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.captures import captures
from tests.gateway.conftest import Running, user
from tests.gateway.upstream import call

ROOT = Path(__file__).parents[2]

SERVER = """
import json, sys
replies = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    print("log line", file=sys.stderr)
    for reply in replies.pop(0) if replies else []:
        if reply == "exit": sys.exit(3)
        print(json.dumps(reply), flush=True)
"""
"""Answers each line it gets with the next list of messages."""


async def wrapped(
    running: Running, sent: list[Any], replies: list[list[Any]], command: list[str] | None = None, **environment: str
) -> tuple[bytes, int]:
    """What comes out of the wrapped server for these messages, and its exit status."""
    process = await asyncio.create_subprocess_exec(
        *(command or [sys.executable, "-m", "evoplane.cli.mcp_stdio", "crm"]),
        sys.executable, "-c", SERVER, json.dumps(replies),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EVOPLANE_URL": running.url,
             "EVOPLANE_KEY": running.secrets["northwind"], **environment},
    )  # fmt: skip
    data = b"".join(json.dumps(message).encode() + b"\n" for message in sent)
    out, _ = await asyncio.wait_for(process.communicate(data), 60)
    assert process.returncode is not None
    return out, process.returncode


def request(method: str, id: int, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def result(id: int, **value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def events(running: Running) -> list[dict[str, Any]]:
    return [record for _, record in running.reader.events("support", "northwind")[0] if record["record"] == "event"]


async def test_calls_of_a_stdio_server_join_the_conversation_whose_model_made_them(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "crm_find", '{"q": "a"}')))
    await running.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    tool = {"name": "find", "annotations": {"readOnlyHint": True}}
    replies = [[result(1, tools=[tool])], [result(2, content=[{"type": "text", "text": "b"}])]]
    sent = [request("tools/list", 1), request("tools/call", 2, name="find", arguments={"q": "a"})]
    out, status = await wrapped(running, sent, replies)
    assert out == b"".join(json.dumps(reply[0]).encode() + b"\n" for reply in replies)
    assert status == 0
    (event,) = [event for event in events(running) if event["kind"] == "tool_call"]
    assert event["a"] == {"name": "crm_find", "call_id": "c1", "arguments": {"q": "a"}}
    assert event["replay"]["effect"] == "read"
    assert running.reader.tools("northwind", event["ctx"]) == [tool]
    assert running.reader.records("northwind", event["trajectory_id"])[0]["session_id"] == "s1"


@pytest.mark.parametrize("name", ["stdio-auto", "stdio-legacy"])
async def test_recorded_stdio_sessions_pass_unchanged_and_every_call_is_told(running: Running, name: str) -> None:
    recorded = [capture for capture in captures("mcp") if "messages" in capture]
    if not recorded:
        pytest.skip("the recorded MCP traffic (../shared/captures/mcp) is not here")
    messages = recorded[0 if name == "stdio-auto" else 1]["messages"]
    sent: list[Any] = []
    replies: list[list[Any]] = []
    for _, direction, message in messages:
        if direction == "client->server":
            sent.append(message)
            replies.append([])
        elif replies:
            replies[-1].append(message)
    out, _ = await wrapped(running, sent, replies, EVOPLANE_SESSION_ID="s1")
    assert out == b"".join(json.dumps(message).encode() + b"\n" for reply in replies for message in reply)
    calls = [message for message in sent if message.get("method") == "tools/call"]
    told = [event for event in events(running) if event["kind"] == "tool_call"]
    assert len(told) == len(calls)
    assert {running.reader.records("northwind", e["trajectory_id"])[0]["session_id"] for e in told} == {"s1"}


async def test_a_server_that_dies_in_a_call_gives_its_status_and_the_call_an_end(running: Running) -> None:
    _, status = await wrapped(running, [request("tools/call", 1, name="boom")], [["exit"]])
    assert status == 3
    (event,) = events(running)
    assert (event["y"]["status"], event["y"]["error"]["type"]) == ("error", "server_exited")


async def test_without_a_gateway_the_server_works_as_before(running: Running) -> None:
    sent = [request("tools/call", id, name="find") for id in range(20)]
    replies = [[result(id)] for id in range(20)]
    began = time.monotonic()
    out, status = await wrapped(running, sent, replies, EVOPLANE_URL="http://127.0.0.1:9")
    assert (len(out.splitlines()), status) == (20, 0)
    assert time.monotonic() - began < 20


async def test_the_command_line_runs_it(running: Running) -> None:
    program = "from evoplane.cli.main import main; main()"
    command = [sys.executable, "-c", program, "mcp", "wrap", "--server", "crm", "--"]
    out, status = await wrapped(running, [request("tools/call", 1, name="find")], [[result(1)]], command)
    assert (json.loads(out), status) == (result(1), 0)
    assert len(events(running)) == 1
