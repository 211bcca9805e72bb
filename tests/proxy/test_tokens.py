"""What was added to a request for token capture is taken out of the reply again."""

from __future__ import annotations

import json
from typing import Any

from services.proxy.sse import EventSplitter
from services.proxy.tokens import TokenCapture


def relayed(capture: TokenCapture, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks as the client sees them."""
    out = b""
    for chunk in chunks:
        (event,) = EventSplitter().feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        out += capture.event(event, chunk)
    return [json.loads(event.data) for event in EventSplitter().feed(out + capture.flush()) if event.data]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": {"content": []}, "finish_reason": finish, "token_ids": [1]}
    return {"id": "c", "model": "served", "choices": [choice], **more}


def test_ids_log_probabilities_and_usage_are_asked_for_and_the_request_is_left_alone() -> None:
    request = {"model": "m", "stream": True, "stream_options": {"x": 1}}
    asked = TokenCapture(request).request(request)
    assert asked == {
        "model": "m",
        "stream": True,
        "return_token_ids": True,
        "logprobs": True,
        "stream_options": {"x": 1, "include_usage": True},
    }
    assert request == {"model": "m", "stream": True, "stream_options": {"x": 1}}


def test_what_the_client_asked_for_itself_stays() -> None:
    request = {"model": "m", "stream": True, "logprobs": True, "return_token_ids": True}
    (seen,) = relayed(TokenCapture(request), chunk({"content": "a"}))
    assert seen["choices"][0]["token_ids"] == [1]
    assert seen["choices"][0]["logprobs"] == {"content": []}


def test_the_name_asked_for_comes_back_and_additions_are_null_again() -> None:
    (seen,) = relayed(TokenCapture({"model": "m", "stream": True}), chunk({"content": "a"}, prompt_token_ids=[1, 2]))
    assert seen["model"] == "m"
    assert seen["prompt_token_ids"] is None
    assert seen["choices"][0]["token_ids"] is None
    assert seen["choices"][0]["logprobs"] is None


def test_chunks_that_only_carry_additions_and_the_added_usage_are_dropped() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 2}, "system_fingerprint": "fp", "model": "served"}
    seen = relayed(
        TokenCapture({"model": "m", "stream": True}), chunk({"content": "a"}), chunk({}), chunk({}, "stop"), usage
    )
    assert [c["choices"][0]["finish_reason"] for c in seen] == [None, "stop"]
    assert seen[-1]["system_fingerprint"] == "fp"


def test_usage_is_not_added_for_several_choices_whose_last_chunks_could_not_be_restored() -> None:
    request = {"model": "m", "stream": True, "n": 2}
    capture = TokenCapture(request)
    assert "stream_options" not in capture.request(request)
    seen = relayed(capture, chunk({}, "stop", system_fingerprint="fp"), chunk({"content": "b"}))
    assert [c.get("system_fingerprint") for c in seen] == ["fp", None]
