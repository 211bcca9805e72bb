"""Approving by a tag in MLflow: what the tag must say, who it is believed from, and that it works once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import time
from pathlib import Path

import pytest

from evoplane.settings import Settings
from registry import approvals, audit, mlflow_approvals
from registry.tenants import RegistryError

KEY = "a key"


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": str(tmp_path)}})


def asked(connection: sqlite3.Connection, needed: int = 1) -> approvals.Approval:
    return approvals.request(connection, "support", "2", {}, 3600, None, needed)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("approved by dana", ("approved", "dana", "")),
        ("Approve by dana: evidence is clear", ("approved", "dana", "evidence is clear")),
        ("rejected by eli: wrong tone", ("rejected", "eli", "wrong tone")),
    ],
)
def test_a_tag_says_what_and_who(value: str, said: tuple[str, str, str]) -> None:
    found = mlflow_approvals.read(value)
    assert (found.decision, found.by, found.reason) == said


@pytest.mark.parametrize("value", ["approved", "yes", "approved by", "", "disapproved by dana"])
def test_a_tag_without_a_name_is_refused_and_the_refusal_is_audited_once(
    config: Settings, connection: sqlite3.Connection, value: str
) -> None:
    with pytest.raises(RegistryError, match="write who decides"):
        mlflow_approvals.read(value)
    id = asked(connection).id
    assert str(mlflow_approvals.apply(config, connection, "support", "2", value)).startswith("refused")
    assert mlflow_approvals.apply(config, connection, "support", "2", value) is None
    assert [e.action for e in audit.entries(connection, id)] == ["approval.requested", "approval.refused"]
    assert approvals.get(connection, id).status == "pending"


def test_a_tag_approves_once_and_the_record_says_that_the_name_was_typed(
    config: Settings, connection: sqlite3.Connection
) -> None:
    id = asked(connection, needed=2).id
    first = mlflow_approvals.apply(config, connection, "support", "2", "approved by dana")
    assert first == "approved by dana; 1 more must approve"
    assert mlflow_approvals.apply(config, connection, "support", "2", "approved by mallory") is not None
    assert mlflow_approvals.apply(config, connection, "support", "2", "approved by eli: fine") == "approved"
    assert mlflow_approvals.apply(config, connection, "support", "2", "approved by eli: fine") is None
    done = approvals.get(connection, id)
    assert [(g.by, g.channel, g.authenticated) for g in done.grants] == [
        ("dana", "mlflow", False),
        ("eli", "mlflow", False),
    ]
    assert done.status == "approved" and audit.verify(connection) == []


class Mlflow:
    """Whose version 2 carries a tag: what a look finds."""

    def __init__(self, value: str):
        self.tags = {"approval": value}

    def get_model_version(self, *_: str) -> Mlflow:
        return self


def test_a_look_does_not_take_the_tag_of_an_earlier_delivery_for_a_yes_to_this_one(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_approvals, "answer", lambda *_: None)
    monkeypatch.setattr(mlflow_approvals.tracking, "client", lambda _: Mlflow("approved by dana"))
    first = asked(connection)
    assert mlflow_approvals.reconcile(config, connection) == ["approved"]
    again = asked(connection)
    assert again.id != first.id
    assert mlflow_approvals.reconcile(config, connection) == []
    assert approvals.get(connection, again.id).status == "pending"
    assert mlflow_approvals.apply(config, connection, "support", "2", "approved by dana") == "approved"  # said anew


def test_a_yes_to_evidence_that_changed_may_be_said_again_but_is_not_found_again(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_approvals, "answer", lambda *_: None)
    monkeypatch.setattr(mlflow_approvals.tracking, "client", lambda _: Mlflow("approved by dana"))
    monkeypatch.setattr(mlflow_approvals.prefect_runs, "resume_soon", lambda *_: {})
    approvals.request(connection, "support", "2", {}, 3600, "run-1", 2)
    assert mlflow_approvals.reconcile(config, connection) == ["approved by dana; 1 more must approve"]
    adopted = approvals.request(connection, "support", "2", {"lift": 0.1}, 3600, "run-2", 2)
    assert mlflow_approvals.reconcile(config, connection) == []
    assert approvals.get(connection, adopted.id).missing == 2
    said = mlflow_approvals.apply(config, connection, "support", "2", "approved by dana")
    assert said == "approved by dana; 1 more must approve"


def test_what_came_of_a_tag_is_shown_on_the_version_also_when_the_webhook_brought_it(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, ...]] = []
    monkeypatch.setattr(mlflow_approvals, "answer", lambda _, *told: shown.append(told))
    asked(connection)
    data = {"name": "support", "version": "2", "key": "approval", "value": "approved by mallory"}
    body = json.dumps({"entity": "model_version_tag", "action": "set", "data": data}).encode()
    mlflow_approvals.receive(config, signed(body, mlflow_approvals.secret(config)), body)
    ((agent, version, outcome),) = shown
    assert (agent, version) == ("support", "2") and outcome.startswith("refused: 'mallory' may not decide")


def signed(body: bytes, key: str = KEY, at: float | None = None) -> dict[bytes, bytes]:
    stamp = str(int(time.time() if at is None else at)).encode()
    digest = hmac.new(key.encode(), b"id-1." + stamp + b"." + body, hashlib.sha256).digest()
    return {
        b"x-mlflow-delivery-id": b"id-1",
        b"x-mlflow-timestamp": stamp,
        b"x-mlflow-signature": b"v1," + base64.b64encode(digest),
    }


def test_only_what_mlflow_signed_lately_is_heard(config: Settings, connection: sqlite3.Connection) -> None:
    mlflow_approvals.verify(KEY, signed(b"{}"), b"{}")
    for headers in (signed(b"{}", "another"), signed(b"{}", at=time.time() - 3600), {}):
        with pytest.raises(mlflow_approvals.BadSignature):
            mlflow_approvals.verify(KEY, headers, b"{}")


def test_a_webhook_message_decides_and_other_tags_mean_nothing(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = asked(connection).id

    def message(key: str) -> bytes:
        data = {"name": "support", "version": "2", "key": key, "value": "approved by dana"}
        return json.dumps({"entity": "model_version_tag", "action": "set", "data": data}).encode()

    monkeypatch.setattr(mlflow_approvals, "answer", lambda *_: None)
    key = mlflow_approvals.secret(config)
    assert mlflow_approvals.secret(config) == key and (config.keys_dir / "mlflow-webhook").stat().st_mode & 0o077 == 0
    assert mlflow_approvals.receive(config, signed(message("note"), key), message("note")) is None
    assert mlflow_approvals.receive(config, signed(message("approval"), key), message("approval")) == "approved"
    assert approvals.get(connection, id).decided_by == "dana"


@pytest.mark.parametrize("stamp", [b"9" * 400, b"9" * 5000, b"-1", b"1e3"])
def test_a_time_that_is_none_is_a_bad_signature(stamp: bytes) -> None:
    with pytest.raises(mlflow_approvals.BadSignature):
        mlflow_approvals.verify(KEY, {**signed(b"{}"), b"x-mlflow-timestamp": stamp}, b"{}")


@pytest.mark.parametrize("again", ["asked", "adopted"])
def test_a_message_from_before_the_approval_was_asked_for_says_nothing_about_it(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Sent again by whoever kept it: it is signed, and no older than five minutes."""
    monkeypatch.setattr(mlflow_approvals, "answer", lambda *_: None)
    monkeypatch.setattr(mlflow_approvals.prefect_runs, "resume_soon", lambda *_: {})
    needed = 2 if again == "adopted" else 1
    approvals.request(connection, "support", "2", {}, 3600, "run-1", needed)
    data = {"name": "support", "version": "2", "key": "approval", "value": "approved by dana"}
    body = json.dumps({"entity": "model_version_tag", "action": "set", "data": data}).encode()
    first = signed(body, mlflow_approvals.secret(config))
    assert mlflow_approvals.receive(config, first, body) is not None
    time.sleep(1.0 - time.time() % 1.0)  # MLflow tells whole seconds
    second = approvals.request(connection, "support", "2", {"lift": 0.1}, 3600, "run-2", needed)
    assert mlflow_approvals.receive(config, first, body) is None
    assert approvals.get(connection, second.id).missing == needed
    anew = signed(body, mlflow_approvals.secret(config))
    assert mlflow_approvals.receive(config, anew, body) is not None
