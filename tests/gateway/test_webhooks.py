"""Webhooks: proven by signature, stored once, and only what the settings say they mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from evoplane.settings import WebhookRule
from services.gateway.webhooks import matches, pointed
from services.proxy.store import open_reader
from tests.gateway.conftest import Running, prepared, serve, user, with_sections
from tests.gateway.upstream import ScriptedUpstream

SECRET = "s3cret"
SESSION = {"x-evoplane-session-id": "s1"}

REOPENED = {
    "when": {"/event/previous": ["solved", "closed"], "/event/current": "open"},
    "name": "ticket_reopened", "value": -1, "label": "reopened", "target_at": "/detail/external_id",
    "time_at": "/time", "confidence": 0.9,
}  # fmt: skip
TESTS = {
    "when": {"/check/status": "completed"}, "name": "ci", "value_at": "/check/score", "scale": [0, 1],
    "source": "environment", "target": "event", "target_at": "/check/text", "target_pattern": r"event: (\S+)",
}  # fmt: skip
PAYLOAD = {
    "event": {"previous": "solved", "current": "open"},
    "detail": {"external_id": "s1"},
    "time": "2026-01-02T03:04:05Z",
}


def _digest(text: bytes, secret: str = SECRET) -> bytes:
    return hmac.new(secret.encode(), text, hashlib.sha256).digest()


def signed(scheme: str, body: bytes, at: float | None = None, secret: str = SECRET) -> dict[str, str]:
    """The headers a sender of this scheme adds."""
    moment = str(int(time.time() if at is None else at))
    match scheme:
        case "github":
            return {"x-hub-signature-256": f"sha256={_digest(body, secret).hex()}", "x-github-delivery": "d1"}
        case "stripe":
            value = _digest(f"{moment}.".encode() + body, secret).hex()
            return {"stripe-signature": f"t={moment},v1={'0' * 64},v1={value},v0=x"}
        case "zendesk":
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(moment)))
            value = base64.b64encode(_digest(stamp.encode() + body, secret)).decode()
            return {"x-zendesk-webhook-signature": value, "x-zendesk-webhook-signature-timestamp": stamp}
        case _:
            return {"x-signature-256": _digest(body, secret).hex()}


@pytest.fixture
async def gateway(
    tmp_path: Path, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("FORMER_SECRET", "former")
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    whose = {"secret_env": ["HOOK_SECRET", "FORMER_SECRET"], "tenant": "northwind", "agent": "support"}
    hooks = {
        scheme: {**whose, "scheme": scheme, "rules": [REOPENED, TESTS]}
        for scheme in ("github", "stripe", "zendesk", "hmac")
    }
    hooks["unset"] = {**hooks["hmac"], "secret_env": ["NO_SUCH_VARIABLE"]}
    hooks["named"] = {**hooks["hmac"], "delivery": "/id"}
    settings = with_sections(settings, webhooks=hooks)
    url, *server = await serve(settings)
    async with aiohttp.ClientSession() as http:
        made = Running(url, settings, upstream, http, secrets, open_reader(settings), connection, server)
        yield made
    await made.stop()
    connection.close()


async def post(gateway: Running, source: str, payload: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    sent = signed(source, body) if headers is None else headers
    url = f"{gateway.url}/v1/feedback/webhooks/{source}"
    async with gateway.http.post(url, data=body, headers=sent) as response:
        return response.status, await response.json()


def signals(gateway: Running) -> list[dict[str, Any]]:
    return [r for _, r in gateway.reader.events("support", "northwind", kinds=["reward"])[0] if "webhook" in r["ext"]]


@pytest.mark.parametrize("scheme", ["github", "stripe", "zendesk", "hmac"])
async def test_a_signed_message_becomes_a_candidate_signal_about_its_session(gateway: Running, scheme: str) -> None:
    await gateway.chat([user("hi")], headers=SESSION)
    status, told = await post(gateway, scheme, PAYLOAD)
    assert (status, told["bound"]) == (202, [True])
    (signal,) = signals(gateway)
    assert (signal["name"], signal["value"], signal["label"], signal["confidence"]) == (
        "ticket_reopened", -1, "reopened", 0.9,
    )  # fmt: skip
    assert signal["optimizable"] is False
    assert signal["source"] == {"kind": "implicit", "id": scheme}
    assert signal["observed_at"] == "2026-01-02T03:04:05.000Z"


@pytest.mark.parametrize("scheme", ["github", "stripe", "zendesk", "hmac"])
async def test_what_is_not_proven_is_refused_and_leaves_nothing(gateway: Running, scheme: str) -> None:
    body = json.dumps(PAYLOAD).encode()
    right = signed(scheme, body)
    other = signed(scheme, body + b" ")
    empty = dict.fromkeys(right, "")
    for headers in ({}, empty, other, signed(scheme, body, secret="guess")):
        status, told = await post(gateway, scheme, body, headers)
        assert (status, told["error"]["code"]) == (401, "bad_signature")
    assert gateway.reader.tenants() == []


@pytest.mark.parametrize("scheme", ["stripe", "zendesk"])
async def test_a_signature_that_tells_its_time_is_good_for_minutes(gateway: Running, scheme: str) -> None:
    body = json.dumps(PAYLOAD).encode()
    for age, expected in ((299, 202), (400, 401), (-400, 401)):
        assert (await post(gateway, scheme, body, signed(scheme, body, time.time() - age)))[0] == expected


async def test_a_message_delivered_again_is_the_same_signal_whatever_its_delivery_header(gateway: Running) -> None:
    await gateway.chat([user("hi")], headers=SESSION)
    body = json.dumps(PAYLOAD).encode()
    for delivery in ("d1", "d1", "forged"):
        await post(gateway, "github", body, {**signed("github", body), "x-github-delivery": delivery})
    await post(gateway, "github", {**PAYLOAD, "other": 1})
    assert len(signals(gateway)) == 2
    for number in (1, 2):  # a message that has an id of its own is known by it
        await post(gateway, "named", {**PAYLOAD, "id": "m1", "try": number}, None)
    assert len(signals(gateway)) == 3


async def test_a_former_secret_is_good_while_it_is_still_named(gateway: Running) -> None:
    body = json.dumps(PAYLOAD).encode()
    assert (await post(gateway, "github", body, signed("github", body, secret="former")))[0] == 202


async def test_a_value_and_a_target_can_be_taken_out_of_the_payload(gateway: Running) -> None:
    chat = await gateway.chat([user("hi")], headers=SESSION)
    event = chat.headers["x-evoplane-event-id"]
    await post(gateway, "hmac", {"check": {"status": "completed", "score": 0.5, "text": f"see event: {event} there"}})
    (signal,) = signals(gateway)
    assert (signal["name"], signal["value"], signal["targets"][0]["event_id"]) == ("ci", 0.5, event)


async def test_a_message_that_means_nothing_is_taken_and_leaves_nothing(gateway: Running) -> None:
    wordy = {"check": {"status": "completed", "score": "high", "text": "event: x"}}
    for payload in ({"zen": "ping"}, {**PAYLOAD, "detail": {}}, wordy, []):
        assert await post(gateway, "hmac", payload) == (202, {"ids": [], "bound": []})
    assert gateway.reader.tenants() == []


async def test_a_signal_may_come_before_its_session(gateway: Running) -> None:
    assert (await post(gateway, "hmac", PAYLOAD))[1]["bound"] == [False]
    await gateway.chat([user("hi")], headers=SESSION)
    assert len(signals(gateway)) == 1


async def test_unknown_sources_missing_secrets_and_bad_json_say_what_is_wrong(gateway: Running) -> None:
    assert (await post(gateway, "nobody", PAYLOAD, {}))[0] == 404
    status, told = await post(gateway, "unset", PAYLOAD)
    assert (status, told["error"]["message"]) == (503, "The secret of 'unset' is not set in the gateway's environment.")
    assert (await post(gateway, "hmac", b"{"))[0] == 400


def test_pointers_follow_rfc_6901() -> None:
    document = {"a/b": {"m~n": [10, {"": 1}]}, "n": None}
    assert pointed(document, "/a~1b/m~0n/0") == 10
    assert pointed(document, "/a~1b/m~0n/1/") == 1
    assert pointed(document, "") is document
    assert pointed(document, "/n") is None
    assert matches(document, {"/n": "*"})
    assert not matches(document, {"/a~1b/m~0n/7": "*"})


@pytest.mark.parametrize(
    "wrong", [{"value": None}, {"value_at": "/x"}, {"target_at": "x"}, {"target_pattern": "no group"}, {"nam": 1}]
)
def test_a_rule_that_says_nothing_is_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WebhookRule.model_validate({"name": "n", "value": 1, "target_at": "/t", **wrong})
