"""The scripted model answers in the shapes of recorded answers, and the same twice."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.captures import Capture, captures, needs_captures
from tests.contract.model import ScriptedModel

_QUESTION = "shapes: What is the weather in Paris, and what time is it?"
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
_CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": _CITY}}
_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "gpt-fake",
        "messages": [{"role": "user", "content": _QUESTION}],
        "tools": [_CHAT_TOOL],
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "model": "gpt-fake",
        "input": _QUESTION,
        "tools": [{"type": "function", "name": "get_weather", "parameters": _CITY}],
        "include": ["reasoning.encrypted_content"],
    },
    "/v1/messages": {
        "model": "claude-fake",
        "messages": [{"role": "user", "content": _QUESTION}],
        "tools": [{"name": "get_weather", "input_schema": _CITY}],
        "thinking": {"type": "enabled"},
    },
}


def ask(model: ScriptedModel, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(model.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return bytes(response.read())


def shapes(value: Any, place: str = "") -> set[str]:
    """Every field by its path, list positions left out, what was asked for (tools, schemas) not looked into."""
    if isinstance(value, dict):
        inner = [{f"{place}.{key}"} | shapes(item, f"{place}.{key}") for key, item in value.items() if key != "tools"]
        return set().union(*inner)
    if isinstance(value, list):
        return set().union(*(shapes(item, place) for item in value))
    return set()


def events(answer: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.decode().split("\n") if line.startswith("data: {")]


def recorded(path: str, streamed: bool) -> list[Capture]:
    ours = ("openai", "anthropic", "openai-agents", "langchain")
    healthy = (c for c in captures() if c.framework in ours and c.whole and not c.scenario.startswith("fault"))
    return [c for c in healthy if c.path == path and c.streamed == streamed]


@needs_captures
@pytest.mark.parametrize("path", _REQUESTS)
def test_whole_answers_have_the_fields_of_recorded_ones(model: ScriptedModel, path: str) -> None:
    known = set().union(*(shapes(json.loads(c.answer)) for c in recorded(path, False) if c.answer.startswith(b"{")))
    said = shapes(json.loads(ask(model, path, _REQUESTS[path])))
    assert said <= known
    assert len(said) > 15


@needs_captures
@pytest.mark.parametrize("path", _REQUESTS)
def test_streams_have_the_events_of_recorded_ones(model: ScriptedModel, path: str) -> None:
    known = {(e.get("type"), s) for c in recorded(path, True) for e in events(c.answer) for s in shapes(e)}
    said = {
        (e.get("type"), s) for e in events(ask(model, path, {**_REQUESTS[path], "stream": True})) for s in shapes(e)
    }
    assert said <= known
    assert len(said) > 15


@pytest.mark.parametrize("path", _REQUESTS)
def test_the_same_run_gets_the_same_bytes_twice(model: ScriptedModel, path: str) -> None:
    runs = []
    for _ in range(2):
        model.reset()
        body = _REQUESTS[path]
        runs.append([ask(model, path, {**body, "stream": streamed}) for streamed in (True, False)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
