"""Webhooks out: signed, tried again with a bound, kept over restarts, failures shown."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evoplane.settings import Settings
from flows import alert_hooks

SECRET = "a long secret of the receiver's"


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[dict[str, str], bytes]]] = []
    answers: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.answers.pop(0) if self.answers else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[HTTPServer]:
    Receiver.got, Receiver.answers = [], []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


@pytest.fixture
def config(receiver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ONCALL_SECRET", SECRET)
    url = f"http://127.0.0.1:{receiver.server_address[1]}/"
    hooks = {"oncall": {"url": url, "secret_env": "ONCALL_SECRET"}}
    return Settings.model_validate({"paths": {"var": str(tmp_path)}, "alert_hooks": hooks})


def enqueue(config: Settings, event: str = "evoplane.agent.degraded", id: str = "al_1") -> None:
    alert_hooks.enqueue(config, event, id, {"agent": "support", "reason": "success 0.4 < 0.9"}, at=1000.0)


def test_an_alert_is_sent_once_and_its_signature_can_be_checked(config: Settings) -> None:
    enqueue(config)
    enqueue(config)
    assert alert_hooks.send(config, clock=lambda: 1234.0).sent == ("oncall",)
    assert alert_hooks.send(config).sent == ()
    ((headers, body),) = Receiver.got
    mac = hmac.new(SECRET.encode(), b"1234." + body, hashlib.sha256).hexdigest()
    assert headers["x-evoplane-signature"] == f"t=1234,v1={mac}"
    assert headers["x-evoplane-delivery"] == "al_1.oncall"
    assert json.loads(body)["agent"] == "support"


def test_a_hook_that_is_away_is_tried_again_with_growing_pauses_and_at_the_next_look(config: Settings) -> None:
    Receiver.answers = [503, 503, 503, 503, 503]
    pauses: list[float] = []
    enqueue(config)
    report = alert_hooks.send(config, sleep=pauses.append, clock=lambda: 1001.0)
    assert report.failed == ("oncall: HTTP 503",) and pauses == [0.5, 1.0, 2.0]
    assert alert_hooks.send(config, sleep=pauses.append, clock=lambda: 1002.0).sent == ("oncall",)
    assert len({headers["x-evoplane-delivery"] for headers, _ in Receiver.got}) == 1


def test_a_refusal_is_not_repeated_and_what_is_too_old_is_put_aside_and_said(config: Settings) -> None:
    Receiver.answers = [400, 400]
    enqueue(config)
    assert alert_hooks.send(config, clock=lambda: 1001.0).failed == ("oncall: HTTP 400",)
    assert len(Receiver.got) == 1
    late = 1000.0 + 25 * 3600
    assert alert_hooks.send(config, clock=lambda: late).failed == ("oncall: HTTP 400; given up",)
    assert [f.name for f in alert_hooks.given_up(config).iterdir()] == ["al_1.oncall.json"]
    enqueue(config)
    assert alert_hooks.send(config).failed == ()


def test_without_its_secret_nothing_is_sent_and_that_is_said(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCALL_SECRET")
    enqueue(config)
    assert alert_hooks.send(config, clock=lambda: 1001.0).failed == ("oncall: ONCALL_SECRET is not set",)
    assert not Receiver.got


def test_a_hook_hears_only_what_it_asked_for(config: Settings) -> None:
    enqueue(config, event="evoplane.agent.workload_shift")
    assert alert_hooks.send(config) == alert_hooks.Report()
