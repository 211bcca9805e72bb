"""Is everything that went between a client and the model in the store, and nothing that did not?

The model's own memory of its exchanges is the truth that the trajectories are held against.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from atdp import messages
from services.proxy.dialects import CHAT, DIALECTS, MESSAGES
from services.proxy.dialects.messages import to_anthropic
from services.proxy.dialects.responses import to_items
from services.proxy.store import StoreReader
from tests.contract.model import Exchange

_QUESTION = re.compile(r"(\w+)(?: \[\w+\])?: What is the weather")


@dataclass
class Stored:
    """A tenant's trajectories."""

    reader: StoreReader
    tenant: str
    trajectories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Records by trajectory, content loaded, in the order they were opened."""

    @classmethod
    def read(cls, reader: StoreReader, tenant: str) -> Stored:
        stored = cls(reader, tenant)
        for row in reversed(reader.trajectories(tenant)):
            assert reader.verify(tenant, row.trajectory_id) == []
            records = reader.records(tenant, row.trajectory_id)
            stored.trajectories[row.trajectory_id] = [reader.resolve(tenant, record) for record in records]
        return stored

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [r for records in self.trajectories.values() for r in records if r.get("kind") == kind]

    def calls(self) -> list[dict[str, Any]]:
        return sorted(self.events("llm_call"), key=lambda call: call["time"])

    def conversation(self, call: dict[str, Any]) -> str:
        """The scenario whose question a call's conversation begins with."""
        for message in call["o"]["messages"]:
            if message["role"] == "user":
                for part in message["parts"]:
                    if part["type"] == "text" and not part["content"].startswith("<system-reminder>"):
                        return scenario(part["content"])
        return ""


def scenario(text: str) -> str:
    """`chat_429` of `chat_429 [429]: What is …`, wherever a framework puts the question."""
    found = _QUESTION.search(text)
    return found[1] if found else text[:40]


def check(stored: Stored, exchanges: list[Exchange]) -> None:
    """Every exchange is one `llm_call` that holds all of it; every input is an event, once."""
    calls = stored.calls()
    assert len(calls) == len(exchanges), "one event an exchange"
    by_answer = {call["ext"]["response"]["id"]: call for call in calls if "response" in call["ext"]}
    failed = [call for call in calls if call["y"]["status"] not in ("ok",)]
    refused = [each for each in exchanges if each.status != 200 or each.cut]
    assert len(failed) == len(refused)
    for call, exchange in zip(failed, refused, strict=True):
        _check_request(stored, call, exchange)
        _check_failure(call, exchange)
    answered = [each for each in exchanges if each.status == 200 and not each.cut]
    for exchange in answered:
        call = by_answer[exchange.answer["id"]]
        _check_request(stored, call, exchange)
        _check_answer(call, exchange)
    _check_inputs(stored, exchanges)


def _check_request(stored: Stored, call: dict[str, Any], exchange: Exchange) -> None:
    body, dialect = exchange.body, DIALECTS[exchange.path]
    said = call["o"]["messages"]
    if dialect is CHAT:
        assert [_spoken(messages.to_openai(message)) for message in said] == [_spoken(m) for m in body["messages"]]
    elif dialect is MESSAGES:
        assert _without_nulls(to_anthropic(said)) == _without_nulls(exchange.said)
    else:
        assert [_item(item) for item in to_items(said)] == [_item(item) for item in exchange.said]
    assert call["o"].get("system_instructions") == dialect.instructions(body)
    assert call["a"]["params"] == dialect.params(body)
    assert call["ext"]["request"].get("model") == body["model"]
    assert call["ext"]["request"].get("stream") == body.get("stream")
    assert stored.reader.tools(stored.tenant, call["ctx"]) == (body.get("tools") or [])
    assert call["ext"]["dialect"] == dialect.name


def _check_answer(call: dict[str, Any], exchange: Exchange) -> None:
    dialect = DIALECTS[exchange.path]
    completion = dialect.whole(exchange.answer)
    assert completion is not None
    expected = [dialect.answer(choice) for choice in completion.ordered()]
    assert _without_nulls(call["a"]["messages"]) == _without_nulls(expected)
    told = not exchange.streamed or dialect is not CHAT or "stream_options" in exchange.body
    if told:
        usage = exchange.answer["usage"]
        counted = usage.get("prompt_tokens", usage.get("input_tokens"))
        wrote = usage.get("completion_tokens", usage.get("output_tokens"))
        assert call["m"]["usage"]["input_tokens"] == counted
        assert call["m"]["usage"]["output_tokens"] == wrote
    else:
        assert call["ext"]["usage_source"] == "absent"
    if exchange.streamed:
        assert call["m"]["ttft_ms"] > 0


def _check_failure(call: dict[str, Any], exchange: Exchange) -> None:
    if exchange.cut:
        assert call["y"]["status"] == "truncated"
        return
    assert call["y"]["status"] == "error"
    assert json.loads(call["y"]["error"]["message"]) == exchange.answer
    assert call["ext"]["http_status"] == exchange.status


def _check_inputs(stored: Stored, exchanges: Iterable[Exchange]) -> None:
    """Each tool result is an event under the trajectory of the call that asked for it, with name and arguments."""
    wanted: dict[str, tuple[str, Any]] = {}
    results: dict[str, Any] = {}
    for exchange in exchanges:
        dialect = DIALECTS[exchange.path]
        completion = dialect.whole(exchange.answer) if exchange.status == 200 and not exchange.cut else None
        for choice in completion.ordered() if completion else ():
            for part in messages.tool_calls(dialect.answer(choice)):
                wanted[part["id"]] = (part["name"], part["arguments"])
        for message in dialect.conversation(exchange.body):
            if message["role"] == "tool":
                (part,) = message["parts"]
                results[part["id"]] = part["response"]
    decided = defaultdict(set)
    for call in stored.calls():
        for message in call["a"]["messages"]:
            for part in messages.tool_calls(message):
                decided[part["id"]].add(call["id"])
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in stored.events("tool_call"):
        events[event["a"]["call_id"]].append(event)
    assert events.keys() == results.keys()
    for call_id, result in results.items():
        (event,) = events[call_id]
        assert (event["a"]["name"], event["a"]["arguments"]) == wanted[call_id]
        assert event["y"]["result"] == result
        assert event["parent_id"] in decided[call_id]


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    """A chat message without fields that say nothing."""
    return {k: v for k, v in message.items() if v not in (None, [])}


def _item(item: dict[str, Any]) -> dict[str, Any]:
    """An item without what says nothing: the type of a message, empty lists, absent values; a text is one part."""
    kept = {k: v for k, v in item.items() if v is not None and (k, v) != ("type", "message")}
    if isinstance(kept.get("content"), str):
        kept["content"] = [{"text": kept["content"]}]
    if isinstance(kept.get("content"), list):
        kept["content"] = [
            {k: v for k, v in part.items() if v not in (None, [], {}) and k != "type"} for part in kept["content"]
        ]
    return kept


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
