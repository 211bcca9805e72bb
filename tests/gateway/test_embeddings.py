"""Embeddings are passed through and recorded; token counts are only passed through."""

from __future__ import annotations

import orjson
import pytest

from tests.gateway.conftest import Running
from tests.gateway.upstream import reply

_VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25] * 1536}],
    "model": "gpt-1",
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


async def test_vectors_are_kept_apart_and_the_event_stays_small(running: Running) -> None:
    running.upstream.scripts.append(reply(200, orjson.dumps(_VECTORS)))
    asked = orjson.dumps({"model": "gpt-1", "input": ["hello"], "encoding_format": "float"})
    response = await running.post("/v1/embeddings", asked)
    assert await response.read() == orjson.dumps(_VECTORS)
    assert running.upstream.bodies == [asked]
    event = running.event(response)
    assert event["kind"] == "x.embedding"
    assert len(orjson.dumps(event)) < 2500
    assert running.resolved(response)["y"]["result"] == _VECTORS["data"]
    running.chain(response)


async def test_a_failed_embedding_is_recorded_as_that(running: Running) -> None:
    running.upstream.scripts.append(reply(429, b'{"error":{"message":"slow down"}}', {"retry-after": "3"}))
    response = await running.post("/v1/embeddings", {"model": "gpt-1", "input": "x"})
    assert (response.status, response.headers["retry-after"]) == (429, "3")
    assert running.event(response)["y"]["status"] == "error"


async def test_counting_tokens_is_no_step_of_a_session(running: Running) -> None:
    running.upstream.scripts.append(reply(200, b'{"input_tokens":7}'))
    body = {"model": "claude-1", "messages": [{"role": "user", "content": "hi"}]}
    response = await running.post("/v1/messages/count_tokens", body)
    assert await response.json() == {"input_tokens": 7}
    assert running.upstream.paths == ["/v1/messages/count_tokens"]
    assert running.reader.trajectories("northwind") == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_who_asks_for_no_known_model_is_told_the_patterns_that_a_provider_takes(
    running: Running, path: str
) -> None:
    response = await running.post(path, {"model": "mistral-1", "messages": [], "input": "x"})
    message = (await response.json())["error"]["message"]
    assert (response.status, message.partition(", and ")[2]) == (404, "whatever matches claude-*.")


async def test_models_are_listed_in_the_form_of_the_client_that_asks(running: Running) -> None:
    async with running.http.get(f"{running.url}/v1/models", headers=running.headers()) as response:
        assert (await response.json())["object"] == "list"
    async with running.http.get(
        f"{running.url}/v1/models", headers={**running.headers(), "anthropic-version": "2023-06-01"}
    ) as response:
        answer = await response.json()
    assert answer["has_more"] is False
    assert answer["data"][0]["type"] == "model"
