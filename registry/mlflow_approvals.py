"""Approving in MLflow: a person sets the tag `approval` on the model version that waits for them.

The value says what and who, for MLflow does not: `approved by dana`, `rejected by dana: wrong tone`. The name is one
that was typed, and the record says so. MLflow's webhook brings the tag here within milliseconds (signed, through the
gateway); what a webhook missed is found by looking (`reconcile`). The tag `approval_record` says what came of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import httpx
import msgspec

from evoplane.settings import Settings
from registry import approvals, audit, control, prefect_runs, tracking
from registry.approvals import Decision
from registry.policies import Policies
from registry.tenants import RegistryError

TAG = "approval"
RECORD_TAG = "approval_record"
CHANNEL = "mlflow"
PATH = "/v1/approvals/mlflow"
_WEBHOOK = "evoplane-approvals"
_FORM = re.compile(r"\s*(approved?|rejected?)\s+by\s+([A-Za-z0-9_.@-]{2,80})\s*(?::\s*(.{0,1000}))?\s*", re.I | re.S)
_TOLERANCE_S = 300.0
_MAX_TAG_CHARS = 500
_TIME_DIGITS = 12
_SET_TAG = "/api/2.0/mlflow/model-versions/set-tag"
_DELETE_TAG = "/api/2.0/mlflow/model-versions/delete-tag"
_ANSWER_TIMEOUT_S = 10.0

_log = logging.getLogger("registry.mlflow_approvals")


class BadSignature(Exception):
    """The message is not proven to come from this deployment's MLflow."""


class Said(msgspec.Struct, frozen=True):
    decision: Decision
    by: str
    reason: str


def read(value: str) -> Said:
    """What a tag says; raises `RegistryError` for a value without a decision or a name."""
    found = _FORM.fullmatch(value)
    if found is None:
        raise RegistryError(f'write who decides: "approved by NAME" or "rejected by NAME: WHY", not {value!r}')
    decision: Decision = "approved" if found[1].lower().startswith("approve") else "rejected"
    return Said(decision, found[2], (found[3] or "").strip())


def apply(
    config: Settings, connection: sqlite3.Connection, agent: str, version: str, value: str, at: int | None = None
) -> str | None:
    """Do what a version's tag says, once; returns what came of it, or None when nothing waits or it was said before.

    `at` (seconds since 1970) is when it was told, where that is known: what was told before the approval was asked for
    on this evidence says nothing about it. A decision that is refused changes nothing; the refusal is audited and shown
    on the version.
    """
    with control.transaction(connection):  # the webhook and a look may find the same tag at the same time
        waiting = [a for a in approvals.list_approvals(connection, agent) if a.version == version]
        asked = next((a for a in reversed(waiting) if approvals.get(connection, a.id).status == "pending"), None)
        if asked is None or _heard(connection, asked, value) or (at is not None and at < _since(connection, asked)):
            return None
        try:
            said = read(value)
            rules = Policies.load(config.policies_dir)
            done, changed = approvals.decide(
                connection, asked.id, said.decision, said.by, CHANNEL, said.reason, policies=rules
            )
        except RegistryError as error:
            audit.append(connection, CHANNEL, "approval.refused", asked.id, {"why": str(error), "tag": value})
            return f"refused: {error}"
        audit.append(connection, CHANNEL, "approval.tag", asked.id, {"tag": value})
    if not changed:
        return f"already said by {said.by}; nothing changed"
    if done.status in ("approved", "rejected") and done.flow_run_id:
        prefect_runs.resume_soon(config, done)
    return done.status if done.status != "pending" else f"approved by {said.by}; {done.missing} more must approve"


def begin(config: Settings, agent: str, version: str) -> None:
    """Take away what an earlier delivery of the version left: its tags say nothing about this one."""
    for key in (TAG, RECORD_TAG):
        body = {"name": agent, "version": version, "key": key}
        try:
            httpx.request("DELETE", f"{config.mlflow_url}{_DELETE_TAG}", json=body, timeout=_ANSWER_TIMEOUT_S)
        except httpx.HTTPError as error:  # what was acted on once is not acted on again by looking (`_old`)
            _log.warning("MLflow keeps the old tags of %s version %s: %s", agent, version, error)
            return


def reconcile(config: Settings, connection: sqlite3.Connection) -> list[str]:
    """Look for tags that no webhook brought; returns what came of them. MLflow is asked only while something waits."""
    outcomes = []
    for asked in approvals.list_approvals(connection):
        if approvals.get(connection, asked.id).status == "pending":
            value = tracking.client(config).get_model_version(asked.agent, asked.version).tags.get(TAG)
            if not value or _old(connection, asked, value):
                continue
            if (outcome := apply(config, connection, asked.agent, asked.version, value)) is not None:
                answer(config, asked.agent, asked.version, outcome)
                outcomes.append(outcome)
    return outcomes


def answers(config: Settings) -> bool:
    """Is MLflow there?"""
    try:
        return httpx.get(f"{config.mlflow_url}/health", timeout=_ANSWER_TIMEOUT_S).is_success
    except httpx.HTTPError:
        return False


def answer(config: Settings, agent: str, version: str, outcome: str) -> None:
    """Show on the version what came of the tag. By REST: MLflow's client has no place in a gateway's process.

    That MLflow does not take it changes nothing about the decision.
    """
    body = {"name": agent, "version": version, "key": RECORD_TAG, "value": outcome[:_MAX_TAG_CHARS]}
    try:
        httpx.post(f"{config.mlflow_url}{_SET_TAG}", json=body, timeout=_ANSWER_TIMEOUT_S).raise_for_status()
    except httpx.HTTPError as error:
        _log.warning("MLflow does not show what came of the tag of %s version %s: %s", agent, version, error)


def receive(config: Settings, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
    """A webhook's message; returns what came of it. Raises `BadSignature`."""
    verify(secret(config), headers, body)
    message = msgspec.json.decode(body)
    data = message.get("data") or {}
    tagged = (message.get("entity"), message.get("action")) == ("model_version_tag", "set")
    if not tagged or data.get("key") != TAG:
        return None
    agent, version = str(data["name"]), str(data["version"])
    connection = control.connect(config.control_db)
    try:
        told = int(headers[b"x-mlflow-timestamp"])
        outcome = apply(config, connection, agent, version, str(data["value"]), told)
    finally:
        connection.close()
    if outcome is not None:
        answer(config, agent, version, outcome)
    return outcome


def verify(key: str, headers: Mapping[bytes, bytes], body: bytes) -> None:
    """MLflow's scheme: `v1,base64(HMAC-SHA256(key, id.time.body))`; old messages are refused."""
    id, at, given = (
        headers.get(f"x-mlflow-{name}".encode(), b"") for name in ("delivery-id", "timestamp", "signature")
    )
    if not at.isdigit() or len(at) > _TIME_DIGITS or abs(time.time() - int(at)) > _TOLERANCE_S:
        raise BadSignature("the message has no time, or is too old")
    signed = hmac.new(key.encode(), b".".join((id, at, body)), hashlib.sha256).digest()
    if not hmac.compare_digest(b"v1," + base64.b64encode(signed), given):
        raise BadSignature("the signature does not match")


def install(config: Settings) -> Literal["created", "known"]:
    """Have MLflow send tags here. Idempotent."""
    mlflow = tracking.client(config)
    url = f"{config.gateway_url}{PATH}"
    for webhook in mlflow.list_webhooks():
        if webhook.name == _WEBHOOK and webhook.url == url:
            return "known"
        if webhook.name == _WEBHOOK:
            mlflow.delete_webhook(webhook.webhook_id)
    events: Any = ["model_version_tag.set"]
    mlflow.create_webhook(name=_WEBHOOK, url=url, events=events, secret=secret(config))
    return "created"


def secret(config: Settings) -> str:
    """What this deployment's MLflow signs with: made once, readable by this account alone."""
    file = config.keys_dir / "mlflow-webhook"
    try:
        return file.read_text()
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return file.read_text()
        with os.fdopen(descriptor, "w") as stream:
            stream.write(made := secrets.token_urlsafe(32))
        return made


def _heard(connection: sqlite3.Connection, asked: approvals.Approval, value: str) -> bool:
    """Was this tag acted on since the approval was asked for on this evidence? MLflow repeats its messages."""
    heard = False
    for entry in audit.entries(connection, asked.id):
        if entry.action == "approval.adopted":
            heard = False
        heard = heard or _acted(entry, value)
    return heard


def _since(connection: sqlite3.Connection, asked: approvals.Approval) -> int:
    """When the approval was asked for on the evidence it has now; whole seconds, as MLflow tells its time."""
    adopted = [entry.at for entry in audit.entries(connection, asked.id) if entry.action == "approval.adopted"]
    return int(datetime.fromisoformat(max([asked.requested_at, *adopted[-1:]])).timestamp())


def _old(connection: sqlite3.Connection, asked: approvals.Approval, value: str) -> bool:
    """Was this tag acted on for any delivery of the version? It stays on it, and every look finds it again."""
    every = [a.id for a in approvals.list_approvals(connection, asked.agent) if a.version == asked.version]
    return any(_acted(entry, value) for id in every for entry in audit.entries(connection, id))


def _acted(entry: audit.Entry, value: str) -> bool:
    return entry.action in ("approval.tag", "approval.refused") and entry.detail.get("tag") == value
