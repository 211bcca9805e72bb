"""What is refused, what failed upstream, and what the client reads then."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any
from unittest.mock import ANY

import aiohttp
import pytest
from openai import APIStatusError, AsyncOpenAI, RateLimitError

from registry import tenants
from services.gateway.upstream import Implausible, called, reason
from tests.gateway.conftest import MODEL, Running, user
from tests.gateway.upstream import reply, say

URL = "/v1/chat/completions"


async def post(running: Running, data: bytes, path: str = URL, key: str = "northwind", **headers: str) -> Any:
    all_headers = {"content-type": "application/json", **running.headers(key), **headers}
    response = await running.http.post(running.url + path, data=data, headers=all_headers)
    return response.status, await response.json(), response


def is_openai_error(body: Any) -> bool:
    return set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b'{"model": ', 400, None),
        (b"", 400, None),
        (b"[]", 400, None),
        (b'{"messages": []}', 400, None),
        (b'{"model": "smollm2-135m", "messages": "hi"}', 400, None),
        (b'{"model": "gpt-9", "messages": []}', 404, "model_not_found"),
        (b'{"a": NaN}', 400, None),
        (b"\xff\xfe", 400, None),
    ],
)
async def test_bad_requests_are_told_what_is_wrong_and_never_reach_the_model(
    running: Running, data: bytes, status: int, code: str | None
) -> None:
    got, body, _ = await post(running, data)
    assert got == status
    assert is_openai_error(body)
    assert body["error"]["code"] == code
    assert running.upstream.requests == []


async def test_missing_unknown_and_revoked_keys_get_the_same_401(running: Running) -> None:
    key_id = next(k.id for k in tenants.list_keys(running.connection) if k.tenant == "lumen")
    tenants.revoke_key(running.connection, key_id)
    await running.wait_for_control()
    answers = []
    for headers in ({}, {"authorization": "Bearer evo_wrong"}, {"authorization": "Basic x"}, running.headers("lumen")):
        async with running.http.post(running.url + URL, data=b"{}", headers=headers) as response:
            answers.append((response.status, await response.json()))
    assert answers == [answers[0]] * 4
    assert answers[0][0] == 401
    assert is_openai_error(answers[0][1])


async def test_a_20_mb_body_is_refused_with_413_whether_its_length_is_declared_or_not(running: Running) -> None:
    big = b'{"model": "smollm2-135m", "messages": [], "pad": "' + b"x" * (20 * 2**20) + b'"}'

    async def chunks() -> Any:
        for at in range(0, len(big), 2**20):
            yield big[at : at + 2**20]

    for data in (big, chunks()):
        try:
            response = await running.http.post(running.url + URL, data=data, headers=running.headers())
        except OSError:
            continue  # the gateway answered and closed before everything was sent
        assert response.status == 413
        assert is_openai_error(await response.json())
    assert (await running.chat([user("still there?")])).status == 200


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_upstreams_error_passes_with_status_body_and_retry_headers_and_is_recorded(
    running: Running, status: int
) -> None:
    body = json.dumps({"error": {"message": "no", "type": "SomeError", "param": None, "code": status}}).encode()
    running.upstream.default = reply(status, body, {"retry-after": "7", "x-should-retry": "false", "x-request-id": "r"})
    response = await running.chat([user("hi")], stream=True)
    assert response.status == status
    assert await response.read() == body
    assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("7", "false")
    event = running.event(response)
    assert event["y"]["status"] == "error"
    assert event["y"]["error"] == {"type": "SomeError", "message": body.decode()}
    assert event["ext"]["http_status"] == status


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b'{"choices": [', b'{"error": "odd"}'])
async def test_a_200_that_is_no_completion_passes_but_is_no_success_in_the_log(running: Running, body: bytes) -> None:
    running.upstream.default = reply(200, body)
    response = await running.chat([user("hi")])
    assert await response.read() == body
    assert running.event(response)["y"]["status"] == "error"


async def test_an_upstream_that_is_down_gives_503_with_retry_after_and_an_event(running: Running) -> None:
    await running.upstream.close()
    response = await running.chat([user("hi")])
    assert response.status == 503
    assert response.headers["retry-after"]
    body = await response.json()
    assert is_openai_error(body)
    place = f"127.0.0.1:{running.settings.worker.vllm_port}"
    assert body["error"]["message"] == f"The upstream 'vllm' ({place}) can't be reached: Connection refused."
    assert running.event(response)["y"]["error"]["type"] == "upstream_unreachable"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (aiohttp.ClientConnectorError(ANY, OSError(111, "Connect call failed ('::1', 9)")), "Connection refused"),
        (aiohttp.ClientConnectorDNSError(ANY, socket.gaierror(-2, "Name not known")), "Name not known"),
        (
            aiohttp.ClientConnectorSSLError(ANY, ssl.SSLError(1, "[SSL] wrong version number")),
            "[SSL] wrong version number",
        ),
        (aiohttp.ClientConnectorCertificateError(ANY, ssl.CertificateError(1, "self-signed")), "self-signed"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (aiohttp.ServerDisconnectedError("<RawResponseMessage(headers=s3cret)>"), "Server disconnected"),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), "Connection reset by peer"),
        (aiohttp.ClientPayloadError("400, message:\n  s3cret"), "it ends too early, or is not encoded as it says"),
        (aiohttp.ClientResponseError(ANY, (), message="s3cret"), "it is no HTTP response that can be read"),
        (aiohttp.InvalidUrlClientError("http://u:s3cret@h:port"), "its URL can't be used"),
        (aiohttp.NonHttpUrlClientError("ftp://u:s3cret@h"), "its URL can't be used"),
        (aiohttp.NonHttpUrlRedirectClientError("ftp://u:s3cret@h"), "it redirects to what is no http(s) URL"),
        (aiohttp.ClientError("http://u:s3cret@h"), "ClientError"),
        (Implausible("its status 700 is none of HTTP's"), "its status 700 is none of HTTP's"),
    ],
)
def test_of_a_failure_only_what_the_system_said_is_told(error: aiohttp.ClientError, says: str) -> None:
    assert reason(error) == says


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://user:secret@api.example.com/v1", " (api.example.com:443)"),
        ("http://[::1]:9", " ([::1]:9)"),
        ("http://user:secret@host:port", ""),
        ("user:secret@host", ""),
    ],
)
def test_a_server_behind_the_gateway_is_named_with_its_host_and_port(url: str, place: str) -> None:
    assert called("upstream", "x", url) == f"The upstream 'x'{place}"


async def test_what_a_broken_upstream_sent_is_not_quoted(running: Running) -> None:
    async def broken(upstream: Any, request: Any, body: Any) -> Any:
        request.transport.write(b"HTTP/1.1 200 OK\r\nset-cookie: s3cret\r\nbad header: s3cret\r\n\r\n")
        return await say("never")(upstream, request, body)

    running.upstream.default = broken
    response = await running.chat([user("hi")])
    assert response.status == 502
    assert (await response.json())["error"]["message"].endswith(
        "broke off its answer: it is no HTTP response that can be read."
    )
    assert "s3cret" not in json.dumps(running.event(response))


async def test_an_upstream_that_drops_the_connection_gives_502(running: Running) -> None:
    async def drop(upstream: Any, request: Any, body: Any) -> Any:
        request.transport.abort()
        return await say("never")(upstream, request, body)

    running.upstream.default = drop
    response = await running.chat([user("hi")])
    assert response.status == 502
    assert "The upstream 'vllm' (127.0.0.1:" in (await response.json())["error"]["message"]
    assert running.event(response)["y"]["status"] == "error"


@pytest.mark.parametrize("running", [{"upstream_timeout_s": 0.2}], indirect=True)
async def test_an_upstream_that_never_answers_gives_504_and_a_timeout_in_the_log(running: Running) -> None:
    running.upstream.default = say("late", delay=5)
    response = await running.chat([user("hi")])
    assert response.status == 504
    assert running.event(response)["y"]["status"] == "timeout"


async def test_the_openai_sdk_reads_our_errors(running: Running) -> None:
    client = AsyncOpenAI(base_url=running.url, api_key=running.secrets["northwind"], max_retries=0)  # without /v1
    with pytest.raises(APIStatusError, match=r"does not exist.*smollm2-135m"):
        await client.chat.completions.create(model="gpt-9", messages=[user("hi")])
    running.upstream.default = reply(429, b'{"error":{"message":"slow down","type":"rate_limit_error"}}')
    with pytest.raises(RateLimitError, match="slow down"):
        await client.chat.completions.create(model=MODEL, messages=[user("hi")])
    assert [model.id async for model in client.models.list()] == [MODEL, "support", "gpt-1", "gpt-fake"]
    await client.close()


async def test_probes_are_cheap_and_no_sessions(running: Running) -> None:
    for method, path, status in (
        ("HEAD", "/", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/api/tags", 404),
        ("GET", "/v1/props", 404),
        ("GET", "/version", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models", 401),
    ):
        async with running.http.request(method, running.url + path) as response:
            assert response.status == status, path
            text = await response.text()
            if status >= 400:
                assert is_openai_error(json.loads(text))
    assert running.reader.tenants() == []
    assert "evoplane_sessions 0" in await (await running.http.get(running.url + "/metrics")).text()


async def test_a_key_is_only_good_for_its_scopes(running: Running) -> None:
    status, body, _ = await post(running, b"{}", "/v1/agents/support/route")
    assert status == 404  # POST there is nothing at all
    async with running.http.get(f"{running.url}/v1/agents/support/route", headers=running.headers()) as response:
        assert response.status == 403
    status, body, _ = await post(running, b'{"model":"smollm2-135m","messages":[]}', **{"x-evoplane-pin-version": "2"})
    assert (status, body["error"]["code"]) == (403, "pin_not_allowed")
