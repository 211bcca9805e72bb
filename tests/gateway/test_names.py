"""What a request names at a shared provider must be its own tenant's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.proxy.dialects import CHAT, MESSAGES, RESPONSES
from services.proxy.reader import StoreReader
from tests.gateway.conftest import Running, ScriptedUpstream, gateway, prepared
from tests.gateway.upstream import reply

ANSWER = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "gpt-1",
    "conversation": {"id": "conv_1"},
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "ci_1", "type": "code_interpreter_call", "container_id": "cntr_1", "code": "1"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "one"}],
        },
    ],
}
ASKED: list[dict[str, Any]] = [
    {"conversation": "conv_1"},
    {"conversation": {"id": "conv_1"}},
    {"input": [{"type": "item_reference", "id": "msg_1"}]},
    {"input": [{"id": "msg_1"}]},
    {"input": [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "mine"}]}]},
    {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
]
NEVER: list[dict[str, Any]] = [
    {"prompt": {"id": "pmpt_1"}},
    {"prompt": {"id": "msg_1", "variables": {"doc": {"type": "input_file", "file_id": "file_1"}}}},
    {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "file_id": "f"}]}]},
]


@pytest.mark.parametrize("names", ASKED)
async def test_what_an_answer_told_is_its_tenants_alone(running: Running, names: dict[str, Any]) -> None:
    running.upstream.scripts += [reply(200, orjson.dumps(ANSWER)), reply(200, orjson.dumps({**ANSWER, "id": "resp_2"}))]
    await running.post("/v1/responses", {"model": "gpt-1", "input": "first"})
    foreign = await running.post("/v1/responses", {"model": "gpt-1", "input": "q", **names}, key="lumen")
    unknown = orjson.loads(orjson.dumps(names).replace(b"_1", b"_9"))
    never = await running.post("/v1/responses", {"model": "gpt-1", "input": "q", **unknown}, key="lumen")
    assert foreign.status == never.status == 404
    assert (await foreign.text()).replace("_1", "_9") == await never.text()
    assert len(running.upstream.requests) == 1
    own = await running.post("/v1/responses", {"model": "gpt-1", "input": "q", **names})
    assert own.status == 200, await own.text()


@pytest.mark.parametrize("names", NEVER)
async def test_what_no_answer_told_of_does_not_exist(running: Running, names: dict[str, Any]) -> None:
    response = await running.post("/v1/responses", {"model": "gpt-1", "input": "q", **names})
    assert response.status == 404
    assert (await response.json())["error"]["code"] == "not_found"
    assert running.upstream.requests == []


@pytest.mark.parametrize(
    "doubled",
    [
        '"previous_response_id":"resp_1","previous_response_id":"resp_2"',
        '"previous_response_id":"resp_1","x":"\\u003a","previous\\u005fresponse_id":"resp_2"',
        '"conversation":{"id":"conv_1","id":"conv_2"}',
    ],
)
async def test_what_is_passed_on_is_what_was_checked_where_a_name_stands_twice(running: Running, doubled: str) -> None:
    other = orjson.loads(orjson.dumps(ANSWER).replace(b"_1", b"_2"))
    running.upstream.scripts += [reply(200, orjson.dumps(each)) for each in (ANSWER, other, {**other, "id": "resp_3"})]
    await running.post("/v1/responses", {"model": "gpt-1", "input": "first"})
    await running.post("/v1/responses", {"model": "gpt-1", "input": "second"}, key="lumen")
    body = f'{{"model":"gpt-1","input":"q",{doubled}}}'.encode()
    response = await running.post("/v1/responses", body, key="lumen")
    assert response.status == 200, await response.text()
    sent = running.upstream.bodies[-1]
    assert b"_2" in sent
    assert b"_1" not in sent


async def test_a_file_in_a_message_is_refused_in_that_dialects_form(running: Running) -> None:
    source = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
    body = {"model": "claude-1", "max_tokens": 1, "messages": [{"role": "user", "content": [source]}]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await running.post(path, body)
        assert response.status == 404
    told = await (await running.post("/v1/messages", body)).json()
    assert told["error"]["type"] == "not_found_error"
    assert running.upstream.requests == []


async def test_what_a_tenant_was_told_is_known_after_a_restart(running: Running) -> None:
    running.upstream.scripts.append(reply(200, orjson.dumps(ANSWER)))
    await running.post("/v1/responses", {"model": "gpt-1", "input": "first"})
    reader = StoreReader(running.settings.store_dir)
    assert all(reader.answer("northwind", id) for id in ("resp_1", "conv_1", "rs_1", "msg_1", "cntr_1"))
    assert reader.answer("lumen", "msg_1") is None
    reader.close()


def test_what_a_client_writes_out_names_nothing() -> None:
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": '{"file_id":"x"}'}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
    tool = {"type": "function", "name": "f", "parameters": {"default": {"file_id": "x"}}}
    assert RESPONSES.names({"input": [said, call, thought, {"role": "user", "content": "q"}], "tools": [tool]}) == []
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {"file_id": "x"}}
    assert MESSAGES.names({"messages": [{"role": "assistant", "content": [used]}]}) == []
    assert CHAT.names({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]}) == [
        "x"
    ]


@pytest.fixture
async def owned(tmp_path: Path, upstream: ScriptedUpstream) -> AsyncIterator[Running]:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    vendor = settings.upstreams["vendor"]
    settings.upstreams["vendor"] = vendor.model_copy(update={"tenant": "northwind"})
    async with gateway(settings, upstream, connection, secrets) as running:
        yield running


async def test_a_tenants_own_provider_serves_it_alone_and_whatever_it_names(owned: Running) -> None:
    owned.upstream.scripts.append(reply(200, orjson.dumps(ANSWER)))
    own = await owned.post("/v1/responses", {"model": "gpt-1", "input": "q", "conversation": "conv_of_elsewhere"})
    assert own.status == 200
    other = await owned.post("/v1/responses", {"model": "gpt-1", "input": "q"}, key="lumen")
    assert other.status == 404
    error = (await other.json())["error"]
    assert error["code"] == "model_not_found"
    assert "whatever matches" not in error["message"]  # another tenant's provider is none of its business
    assert len(owned.upstream.requests) == 1
