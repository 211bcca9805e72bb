"""Each dialect's requests and answers as conversations, on what real clients and servers sent."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from atdp import messages
from services.proxy.conversation import after, fingerprints
from services.proxy.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect
from services.proxy.dialects.messages import to_anthropic
from services.proxy.dialects.responses import to_items
from services.proxy.sse import EventSplitter
from tests.captures import Capture, captures, needs_captures

_CALLS = [
    capture
    for capture in captures()
    if capture.method == "POST" and capture.dialect_path in DIALECTS and isinstance(capture.body, dict)
    # some recordings left the body out
    if DIALECTS[capture.dialect_path].content_field in capture.body
]
_STREAMS = [c for c in _CALLS if c.streamed and c.whole]

pytestmark = needs_captures


def names(items: list[Capture]) -> list[str]:
    return [item.name for item in items]


def assembled(dialect: Dialect, data: bytes, cuts: list[int]) -> Any:
    """The completion of a stream that arrives in these pieces."""
    splitter, assembler = EventSplitter(), dialect.assembler()
    events = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += splitter.feed(data[start:end])
    events += splitter.close()
    assert b"".join(event.raw for event in events) == data
    for event in events:
        chunk = None
        if event.data and event.data.startswith(b"{"):
            chunk = orjson.loads(event.data)
            assembler.add(chunk)
        assembler.completion.done |= assembler.ends(event, chunk)
    return assembler.completion


@pytest.mark.parametrize("capture", _CALLS, ids=names(_CALLS))
def test_a_request_can_be_written_again_as_it_was(capture: Capture) -> None:
    dialect = DIALECTS[capture.dialect_path]
    said = dialect.conversation(capture.body)
    given = capture.body.get(dialect.content_field)
    if dialect is CHAT:
        assert [messages.to_openai(m) for m in said] == [_plain(m) for m in given]
    elif dialect is MESSAGES:
        assert to_anthropic(said) == given
    elif dialect is RESPONSES and isinstance(given, list):
        assert [_typed(item) for item in to_items(said)] == [_typed(item) for item in given]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A chat message as it is written again: an assistant's empty fields say nothing and are left out."""
    if message["role"] != "assistant":
        return message
    rest = {key: value for key, value in message.items() if value not in (None, [], "", {})}
    return {"content": None, **rest}


def _typed(item: dict[str, Any]) -> dict[str, Any]:
    """A message item may leave its type out; empty lists beside a text say nothing."""
    kind = item.get("type", "message")
    content = item.get("content")
    if isinstance(content, list):
        content = [{k: v for k, v in part.items() if v not in ([], None)} for part in content]
    return {**item, "type": kind, **({"content": content} if "content" in item else {})}


@pytest.mark.parametrize("capture", _STREAMS, ids=names(_STREAMS))
def test_where_a_stream_is_cut_makes_no_difference(capture: Capture) -> None:
    dialect, data = DIALECTS[capture.dialect_path], capture.answer
    chance = random.Random(capture.name)
    whole = assembled(dialect, data, [])
    assert whole.finished
    assert whole.done
    for _ in range(5):
        cuts = sorted(chance.sample(range(len(data)), min(len(data), chance.randint(1, 40))))
        assert assembled(dialect, data, cuts) == whole
    assert assembled(dialect, data, list(range(1, len(data)))) == whole


@pytest.mark.parametrize("capture", [c for c in _STREAMS if c.dialect_path == "/responses"], ids=lambda c: c.name)
def test_the_events_of_a_response_add_up_to_what_its_last_event_says(capture: Capture) -> None:
    said = [e.data for e in EventSplitter().feed(capture.answer) if e.data]
    assembler = RESPONSES.assembler()
    for data in said[:-1]:
        assembler.add(orjson.loads(data))
    before = RESPONSES.answer(assembler.completion.choice(0))
    final = RESPONSES.whole(orjson.loads(said[-1])["response"])
    assert final is not None
    assert before["parts"] == RESPONSES.answer(final.choice(0))["parts"]


def test_a_conversation_goes_on_from_its_answer_whatever_form_the_client_gives_it_back_in() -> None:
    """Consecutive requests of one scenario: each later one that repeats an earlier answer is found by meaning."""
    found = compared = 0
    for framework in ("openai", "anthropic", "langchain", "crewai", "hermes-agent", "openai-agents", "codex"):
        ended: dict[tuple[str, bytes], str] = {}
        for capture in (
            c for c in _CALLS if c.framework == framework and c.whole and not c.scenario.startswith("fault")
        ):
            dialect = DIALECTS[capture.dialect_path]
            said = dialect.conversation(capture.body)
            prints = fingerprints(said, dialect.instructions(capture.body), b"k")
            if any(message["role"] == "assistant" for message in said):
                compared += 1
                found += any((capture.scenario, meaning) in ended for meaning in prints.meanings)
            completion = (
                assembled(dialect, capture.answer, [])
                if capture.streamed
                else dialect.whole(orjson.loads(capture.answer))
            )
            if completion is not None and completion.choices:
                _, end = after(prints, dialect.answer(completion.choice(0)), b"k")
                ended[capture.scenario, end.meaning] = capture.name
    assert compared > 60
    # the rest answers something that was trimmed in the recording or never seen whole
    assert found / compared > 0.9, f"{found} of {compared}"
