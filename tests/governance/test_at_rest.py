"""Through the real gateway: no secret on the disk, no foreign byte, and everything back with a grant."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from atdp.clock import timestamp
from registry import audit, grants, keyring, roles, tenant_policy
from registry.policies import Policies, Principal
from registry.tenant_policy import TenantPolicy
from services.proxy.opening import Opener
from services.proxy.retention import TOMBSTONE, retain, withdraw
from services.proxy.sealing import SealBroken
from services.proxy.store import open_store
from tests.gateway.conftest import Running, prepared, running, serve, upstream, user
from tests.gateway.upstream import call, reply, say
from tests.proxy.at_rest import every_byte
from tests.redaction.corpus import KINDS, encodings

__all__ = ["running", "upstream"]  # fixtures

RULES = Policies.load()


def told(secret: str, disk: bytes) -> bool:
    return any(form.encode() in disk for form in (secret, json.dumps(secret)[1:-1], *encodings(secret)))


def secrets(seed: int) -> list[tuple[str, str]]:
    """(secret, sentence) of every kind; those of three digits are left out, they stand in any number."""
    found = []
    for kind, (make, template) in KINDS.items():
        secret = make(random.Random(f"{seed}/{kind}"))
        if len(secret) > 6:
            found.append((secret, template.format(secret)))
    return found


async def test_no_planted_secret_is_in_any_file_in_the_clear_or_in_base64(running: Running) -> None:
    planted: list[str] = []
    for index, (secret, sentence) in enumerate(secrets(1)):
        planted.append(secret)
        arguments = json.dumps({"note": sentence, "n": index})
        running.upstream.scripts.append(call((f"c{index}", "note", arguments)))
        running.upstream.scripts.append(say(sentence, delay=0) if index % 2 else reply(401, sentence.encode()))
        session = {"x-evoplane-session-id": f"s{index % 5}"}
        middle = sentence.index(secret) + len(secret) // 2
        split = [{"type": "text", "text": sentence[:middle]}, {"type": "text", "text": sentence[middle:]}]
        tool = {"type": "function", "function": {"name": "note", "description": sentence, "parameters": {}}}
        first = [{"role": "user", "content": split}]
        asked = await running.chat(first, headers=session, tools=[tool])
        assert asked.status == 200
        answer = (await asked.json())["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": f"c{index}", "content": json.dumps({"seen": sentence})}
        await running.chat([*first, answer, result], headers=session, stream=bool(index % 2), user=sentence)
        await running.feedback({"event_id": asked.headers["x-evoplane-event-id"], "name": "user_correction",
                                "explanation": sentence})  # fmt: skip
        await running.report({"kind": "tool_call", "session_id": f"s{index % 5}", "name": "n", "arguments": sentence,
                              "result": {sentence: [sentence]}, "error": sentence})  # fmt: skip
    await running.stop()
    disk = every_byte(running.settings.var)
    assert len(disk) > 100_000
    assert [secret for secret in planted if told(secret, disk)] == []
    problems = [
        problem
        for row in running.reader.trajectories("northwind")
        for problem in running.reader.verify("northwind", row.trajectory_id)
    ]
    assert problems == []


async def test_no_byte_of_one_tenant_is_in_anothers_log(running: Running) -> None:
    rng = random.Random(3)
    words = {tenant: [f"{tenant}-{rng.getrandbits(64):x}" for _ in range(30)] for tenant in ("northwind", "lumen")}

    async def talk(tenant: str, word: str) -> None:
        running.upstream.default = say("the same answer")
        headers = {"x-evoplane-session-id": rng.choice(("shared", f"own-{rng.randint(1, 3)}"))}
        response = await running.chat([user("the same prompt"), user(word)], key=tenant, headers=headers)
        other = "lumen" if tenant == "northwind" else "northwind"
        event = response.headers["x-evoplane-event-id"]
        await running.feedback({"event_id": event, "name": "helpful", "value": 1, "explanation": word}, key=other)
        refused = await running.report({"kind": "tool_call", "trajectory_id": event, "name": word}, key=other)
        assert refused.status == 404

    await asyncio.gather(*(talk(tenant, word) for tenant, all_ in words.items() for word in all_))
    own = {t: b"".join(json.dumps(r).encode() for r in _all(running, t)) for t in words}
    for tenant, all_ in words.items():
        other = "lumen" if tenant == "northwind" else "northwind"
        # a signal about another's event waits in one's own log for ever: its words are one's own, not foreign
        assert all(word.encode() in own[tenant] for word in all_)
        assert not any(word.encode() in own[other] for word in all_)


def _all(running: Running, tenant: str) -> list[dict[str, Any]]:
    reader = running.reader
    rows = reader.trajectories(tenant)
    return [reader.resolve(tenant, record) for row in rows for record in reader.records(tenant, row.trajectory_id)]


async def test_a_conversation_is_readable_redacted_goes_on_after_a_restart_and_opens_with_a_grant(
    running: Running,
) -> None:
    mail, card = "anna.berg@example.com", 4012888888881881
    session = {"x-evoplane-session-id": "s1"}
    running.upstream.scripts.append(call(("c1", "pay", json.dumps({"card": card, "mail": mail}))))
    first = [user(f"I am {mail}")]
    asked = await running.chat(first, headers=session)
    answer = (await asked.json())["choices"][0]["message"]
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"])["card"] == card, (
        "the client's bytes are its own"
    )
    await running.stop()
    running.url, *running.server = await serve(running.settings)
    running.upstream.default = say(f"done, {mail}")
    told_ = [*first, answer, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]
    last = await running.chat(told_, headers=session)
    record = running.reader.resolve("northwind", running.event(last))
    assert mail not in json.dumps(record)
    assert record["trajectory_id"] == running.event(asked)["trajectory_id"]

    opened = _opener(running, record["trajectory_id"]).open(record)
    texts = json.dumps(opened["o"]["messages"])
    assert texts.count(mail) == 2
    assert opened["a"]["messages"][0]["parts"][0]["content"] == f"done, {mail}"
    call_part = next(p for m in opened["o"]["messages"] for p in m["parts"] if p["type"] == "tool_call")
    assert call_part["arguments"] == {"card": card, "mail": mail}
    assert opened["tokens"]["prompt_token_ids"] == list(range(10 * len(told_)))
    assert opened["tokens"]["completion_token_ids"] == [7, 8, 2]
    uses = [e for e in audit.entries(running.connection) if e.action == "grant.use"]
    assert [e.detail["trajectory"] for e in uses] == [record["trajectory_id"]]


def _opener(running: Running, trajectory: str) -> Opener:
    roles.give(running.connection, "iris", "privacy_officer", "northwind", "test")
    grant = grants.create(
        running.connection, RULES, "northwind", "debug", "iris", "sam", "test", timedelta(hours=1), None, (trajectory,)
    )
    keys = keyring.load(running.connection, keyring.master_key(running.settings.keys_dir, {}))["northwind"]
    return Opener(running.reader, running.connection, RULES, keys, grant.id, Principal("sam"))


async def test_what_is_past_its_retention_opens_no_more_and_its_chain_verifies(running: Running) -> None:
    policy = TenantPolicy(retention_days=30)
    tenant_policy.put(running.connection, "northwind", policy, "test")
    await running.wait_for_control()
    response = await running.chat([user("I am anna.berg@example.com")], headers={"x-evoplane-session-id": "s1"})
    record = running.event(response)
    id = record["trajectory_id"]
    assert running.chain(response)[0]["gov"]["retention"]["policy"] == "30d"
    opener = _opener(running, id)
    await running.feedback({"session_id": "s1", "name": "resolved", "value": 1})
    await running.stop()
    store = open_store(running.settings)
    await store.start()
    try:
        assert (await retain(store, running.reader, "northwind", policy)).erased == []
        later = running.chain(response)[0]["gov"]["retention"]["expires_at"]
        at = __import__("datetime").datetime.fromisoformat(later) + timedelta(seconds=1)
        held = await retain(store, running.reader, "northwind", TenantPolicy(legal_hold=True), at)
        assert (held.erased, held.held) == ([], [id])
        assert (await retain(store, running.reader, "northwind", policy, at)).erased == [id]
        assert (await retain(store, running.reader, "northwind", policy, at)).erased == []
        assert await withdraw(store, "northwind", [id], "dpo") == [id]
    finally:
        await store.close()
    chain = running.chain(response)
    assert [r["name"] for r in chain if r["record"] == "annotation"] == ["resolved", TOMBSTONE, "consent_withdrawn"]
    assert chain[-1]["patch"]["eligibility"]["train"] == "deny"
    with pytest.raises(SealBroken, match="erased"):
        opener.open(record)


async def test_what_is_past_its_retention_and_open_is_told_and_goes_once_it_is_closed(running: Running) -> None:
    policy = TenantPolicy(retention_days=30)
    response = await running.chat([user("hi")], headers={"x-evoplane-session-id": "s1"})
    id = running.event(response)["trajectory_id"]
    await running.stop()
    at = datetime.now(UTC) + timedelta(days=31)
    store = open_store(running.settings)
    await store.start()
    try:
        assert await retain(store, running.reader, "northwind", policy, at) == ([], [], [id])
        assert await retain(store, running.reader, "northwind", TenantPolicy(legal_hold=True), at) == ([], [], [])
        await store.close_idle(["northwind"], timestamp(at))
        assert await retain(store, running.reader, "northwind", policy, at) == ([id], [], [])
    finally:
        await store.close()


async def test_a_policy_that_blocks_answers_503_when_redaction_fails(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.proxy.redaction.detect import Detector

    tenant_policy.put(running.connection, "northwind", TenantPolicy(on_failure="block"), "test")
    await running.wait_for_control()

    def broken(self: Detector, text: str) -> Any:
        raise RuntimeError

    monkeypatch.setattr(Detector, "find", broken)
    refused = await running.chat([user("hello there")])
    assert refused.status == 503
    assert (await refused.json())["error"]["code"] == "redaction_failed"
    # the model would be asked again, and nobody will find an event
    assert refused.headers["x-should-retry"] == "false"
    assert not {"retry-after", "x-evoplane-event-id"} & {name.lower() for name in refused.headers}
    assert (await running.chat([user("hello there")], key="lumen")).status == 200


def test_two_gateways_on_one_directory_share_the_master_key(tmp_path: Path) -> None:
    settings, connection, _ = prepared(tmp_path, 1)
    assert keyring.master_key(settings.keys_dir, {}) == keyring.master_key(settings.keys_dir, {})
    connection.close()
