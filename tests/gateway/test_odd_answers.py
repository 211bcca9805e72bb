"""Whatever an upstream says, the client gets it and the record has what can be made out of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest

from services.gateway.errors import beginning
from services.proxy.dialects.chat import ChatAssembler
from services.proxy.lenient import mended, read_json
from tests.gateway.conftest import Running, user
from tests.gateway.upstream import Script, reply, say, stream

DONE = b"data: [DONE]\n\n"


def piece(content: bytes, finish: bytes = b"null", more: bytes = b"") -> bytes:
    """A chunk whose content is JSON text as it stands."""
    return (
        b'data: {"id":"c1","model":"gpt-1","choices":[{"index":0,"delta":{"content":"%b"}%b,"finish_reason":%b}]}\n\n'
        % (content, more, finish)
    )


def said(event: dict[str, Any]) -> str:
    return "".join(part["content"] for part in event["a"]["messages"][0]["parts"])


async def asked(running: Running, script: Script, stream: bool = True, **body: Any) -> tuple[dict[str, Any], bytes]:
    """The event of an exchange, and what the client got."""
    running.upstream.scripts.append(script)
    response = await running.chat([user("hi")], stream=stream, **{"model": "gpt-1", **body})
    assert response.status == 200
    async with asyncio.timeout(5):
        while running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is None:
            await asyncio.sleep(0.01)
    return running.event(response), await response.read()


async def test_half_characters_in_pieces_of_their_own_are_one_character_in_the_record(running: Running) -> None:
    pieces = [piece(b"I give you \\ud83d"), piece(b"\\ude00 and 500 EUR"), piece(b"", b'"stop"'), DONE]
    event, got = await asked(running, stream(*pieces))
    assert (event["y"]["status"], said(event)) == ("ok", "I give you \U0001f600 and 500 EUR")
    assert got == b"".join(pieces)


async def test_bytes_that_are_no_utf_8_lose_nothing_else(running: Running) -> None:
    event, _ = await asked(running, stream(piece(b"before \xff after"), piece(b"", b'"stop"'), DONE))
    assert said(event) == "before \ufffd after"


async def test_a_whole_answer_with_half_a_character_is_an_answer(running: Running) -> None:
    body = b'{"id":"c1","choices":[{"index":0,"message":{"content":"a\\ud83d"},"finish_reason":"stop"}]}'
    event, got = await asked(running, reply(200, body), stream=False)
    assert (event["y"]["status"], said(event), got) == ("ok", "a\ufffd", body)


async def test_log_probabilities_that_are_not_there_are_not_recorded_and_the_answer_is(running: Running) -> None:
    missing = b',"logprobs":{"content":[{"token":"a","logprob":null}]}'
    event, _ = await asked(running, stream(piece(b"42", more=missing), piece(b"", b'"stop"'), DONE))
    assert (event["y"]["status"], said(event)) == ("ok", "42")


@pytest.mark.parametrize("end", [DONE, b""])
async def test_a_piece_that_can_not_be_read_reaches_the_client_and_the_event_says_that_it_lacks_something(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: bytes
) -> None:
    add = ChatAssembler.add

    def some(self: ChatAssembler, chunk: dict[str, Any]) -> None:
        if "password" in str(chunk):
            raise TypeError(f"unreadable: {chunk}")
        add(self, chunk)

    monkeypatch.setattr(ChatAssembler, "add", some)
    pieces = [piece(b"one "), piece(b"the password is hunter2"), piece(b"two", b'"stop"'), end]
    event, got = await asked(running, stream(*filter(None, pieces)))
    assert got == b"".join(pieces)
    assert (event["y"]["status"], event["ext"]["unread"], said(event)) == ("unknown", True, "one two")
    assert "can't be read: TypeError" in caplog.text and "hunter2" not in caplog.text


async def test_an_answer_of_which_no_record_can_be_made_leaves_an_event_without_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.proxy.capture import Exchange

    answer = Exchange._answer

    def broken(self: Exchange, choice: Any) -> Any:
        raise KeyError("role")

    monkeypatch.setattr(Exchange, "_answer", broken)
    event, _ = await asked(running, say("hello"), stream=False)
    assert (event["y"]["status"], event["ext"]["unread"]) == ("unknown", True)
    monkeypatch.setattr(Exchange, "_answer", answer)
    assert said((await asked(running, say("hello"), stream=False))[0]) == "hello"


@pytest.mark.parametrize("id", ['["x"]', "7", '{"a":1}', '"a\\u0000b"'])
@pytest.mark.parametrize("running", [{"capture": "async"}, {"capture": "durable"}], indirect=True)
async def test_an_answers_id_may_be_anything(running: Running, id: str, caplog: pytest.LogCaptureFixture) -> None:
    body = b'{"id":%b,"choices":[{"message":{"content":"psst hunter2"},"finish_reason":"stop"}]}' % id.encode()
    event, _ = await asked(running, reply(200, body), stream=False)
    assert said(event) == "psst hunter2"
    answer = {"id": orjson.loads(id), "object": "response", "status": "completed", "model": "gpt-1", "output": []}
    running.upstream.scripts.append(reply(200, orjson.dumps(answer)))
    assert (await running.post("/v1/responses", {"model": "gpt-1", "input": "hi"})).status == 200
    await asyncio.sleep(0.05)
    assert "hunter2" not in caplog.text


async def test_a_redirect_is_not_followed_with_the_operators_key(running: Running) -> None:
    there = f"{running.upstream.url}/v1/elsewhere"
    running.upstream.scripts.append(reply(307, b"", {"location": there}))
    response = await running.post("/v1/messages", {"model": "claude-1", "max_tokens": 1, "messages": [user("hi")]})
    assert response.status == 502 and "location" not in response.headers
    assert running.upstream.paths == ["/v1/messages"]


async def test_a_header_that_no_server_could_send_is_left_out(running: Running) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            body = b'{"id":"c1","choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-a: a\x01b\r\nx-b: b\r\n"
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            await asyncio.sleep(0.2)
        writer.close()

    port = running.upstream.port
    await running.upstream.close()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    response = await running.chat([user("hi")], model="gpt-1")
    assert (response.status, response.headers.get("x-a"), response.headers["x-b"]) == (200, None, "b")
    server.close()
    await running.upstream.start()


def test_what_is_cut_ends_before_the_word_it_is_cut_in() -> None:
    assert beginning(b"wrong key: sk-proj-0123456789", 20) == "wrong key: "
    assert beginning(b"wrong key: sk-proj-0123456789", 29) == "wrong key: sk-proj-0123456789"


def test_halves_of_characters_are_joined_where_they_stand_together() -> None:
    odd = read_json(b'{"a\\ud83d": ["\\ud83d\\ude00", "\\ud83d", 1]}')
    assert odd.odd and mended(odd.value) == {"a\ufffd": ["\U0001f600", "\ufffd", 1]}
    assert read_json(b'{"a": 1}') == ({"a": 1}, False)
    assert read_json(b"[" * 100_000).value is None
