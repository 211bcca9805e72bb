"""What may be stored: redacted, sealed, under policy; and nothing in the clear whatever goes wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from msgspec import UNSET

from atdp import schema
from atdp.canonical import digest, digest_bytes
from atdp.records import Context, ContextBody, Message, MessagePrefix, Observation, Outcome, Part, Tokens, ToolInfo
from registry.keyring import TenantKeys
from registry.tenant_policy import Dictionary, FieldRule, TenantPolicy
from services.proxy.drafts import Content, SealedBlob, TrajectoryKey
from services.proxy.governor import Governor
from services.proxy.protection import Blocked
from services.proxy.redaction.detect import Detector
from services.proxy.sealing import SealBroken
from tests.governance.drafting import Governance, call, governor, opened, opening, record, said, text
from tests.proxy.drafting import CONTEXT, signal

KEYS = TenantKeys("a", {1: b"a" * 32})
MAIL = "anna.berg@example.com"


def test_what_is_clean_is_stored_as_it_came_token_ids_too() -> None:
    event = call(text="where is order 10293847561?")
    protected = governor().protect("a", [opened(), event])
    assert protected[1] is event
    assert protected[0].gov.redaction.policy == "standard"


def test_the_text_has_a_pseudonym_and_the_original_is_sealed_beside_it() -> None:
    protected = governor().protect("a", [opened(), call(text=f"I am {MAIL}", answer=f"Hello {MAIL}")])
    stored = record(protected)
    assert MAIL.encode() not in text(protected)
    asked, answered = stored["o"]["messages"][0], stored["a"]["messages"][0]
    name = asked["parts"][0]["content"].removeprefix("I am ")
    assert answered["parts"][0]["content"] == f"Hello {name}"
    assert stored["gov"]["redaction"] == {"state": "sealed", "policy": "standard"}
    sealed = stored["ext"]["sealed"]
    assert sealed["labels"] == ["pii.email_address"]
    assert opening(protected, KEYS)(sealed) == {name: MAIL}
    schema.decode({**stored, "seq": 1, "prev_hash": None, "hash": "sha256:" + "0" * 64})


def test_token_ids_and_logprobs_are_sealed_whenever_text_of_the_exchange_was_redacted() -> None:
    asked = call("e0", text=f"I am {MAIL}", tokens=UNSET, kind="user_message")
    protected = governor().protect("a", [opened(), asked, call("e1", text="clean")])
    tokens = record(protected)["tokens"]
    open_ = opening(protected, KEYS)
    assert open_(tokens["prompt_token_ids"]) == [1, 2, 3]
    assert open_(tokens["completion_token_ids"]) == [4, 5]
    assert open_(tokens["logprobs"]) == [-0.1, -0.2]
    assert tokens["policy_versions"] == [(2, "v1")]


def test_later_calls_of_a_redacted_trajectory_have_sealed_ids_too() -> None:
    ruler = governor()
    ruler.protect("a", [opened(), call("e1", text=f"I am {MAIL}")])
    later = ruler.protect("a", [call("e2", text="thanks")])
    assert "sealed" in record(later, "e2")["tokens"]["prompt_token_ids"]


def test_a_trajectory_nobody_saw_begin_has_sealed_ids() -> None:
    assert "sealed" in record(governor().protect("a", [call()]))["tokens"]["prompt_token_ids"]


def test_a_secret_is_kept_nowhere_and_neither_are_token_ids_that_would_tell_it() -> None:
    secret = "sk-ant-api03-abcdefghij0123456789abcdef"
    ruler = governor()
    protected = ruler.protect("a", [opened(), call(text=f"use {secret}")])
    assert secret.encode() not in text(protected)
    assert record(protected)["tokens"]["prompt_token_ids"] == {"redacted": "drop", "labels": ["tokens", "secret"]}
    assert not [d for d in protected if isinstance(d, SealedBlob)]
    form = {"prefix": "e1", "append": [6]}
    later = ruler.protect("a", [call("e2", tokens=Tokens(prompt_token_ids=form, completion_token_ids=[7]))])
    assert opening(later, KEYS)(record(later, "e2")["tokens"]["prompt_token_ids"]) == form


def test_a_value_recognised_once_is_hidden_wherever_it_stands_from_then_on() -> None:
    ruler = governor()
    first = ruler.protect("a", [opened(), call(text="password: hunter2-x", answer="hunter2-x is too short")])
    later = ruler.protect("a", [call("e2", text="try hunter2-x again")])
    assert b"hunter2-x" not in text(first) + text(later)


def test_without_sealing_originals_and_ids_are_gone() -> None:
    protected = governor(seal=False).protect("a", [opened(), call(text=f"I am {MAIL}")])
    stored = record(protected)
    assert "sealed" not in stored["ext"] if "ext" in stored else True
    assert stored["tokens"]["completion_token_ids"] == {"redacted": "drop", "labels": ["tokens"]}
    assert stored["gov"]["redaction"]["state"] == "redacted"
    assert len(protected) == 2


@pytest.mark.parametrize(("policy", "leaf"), [("seal", "sealed"), ("drop", "redacted")])
def test_reasoning_is_sealed_or_dropped_when_the_policy_says_so(policy: Any, leaf: str) -> None:
    thinking = Message(role="assistant", parts=[Part(type="reasoning", content="hm"), Part(type="text", content="ok")])
    event = call(a=msgspec.structs.replace(call().a, messages=[thinking]))
    stored = record(governor(reasoning=policy).protect("a", [opened(), event]))
    reasoning, said_ = stored["a"]["messages"][0]["parts"]
    assert leaf in reasoning["content"]
    assert said_["content"] == "ok"
    assert isinstance(stored["tokens"]["completion_token_ids"], dict)


def test_our_own_ids_prefixes_and_pointers_stay() -> None:
    messages = MessagePrefix(prefix="ev_4111111111111111", append=[{"event": "ev_5555555555554444"}])
    event = call(
        "ev_4012888888881881", o=Observation(messages=messages), ext={"links": {"ends": [["4111111111111111"]]}}
    )
    assert governor().protect("a", [opened(), event])[1] is event


def test_a_failing_recogniser_stores_nothing_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Detector, text: str) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(Detector, "find", broken)
    protected = governor().protect("a", [opened(), call(text=f"I am {MAIL}")])
    assert MAIL.encode() not in text(protected)
    assert record(protected)["o"]["messages"][0]["parts"][0]["content"] == {
        "redacted": "drop",
        "labels": ["redaction_failed"],
    }
    with pytest.raises(Blocked):
        governor(on_failure="block").protect("a", [opened(), call(text="some text")])


def test_without_a_key_events_are_stored_without_payload_and_their_context_without_tools() -> None:
    context = Context(atdp="1.0", id="", body=ContextBody(tools=[ToolInfo(name=MAIL, schema="sha256:" + "0" * 64)]))
    context = msgspec.structs.replace(context, id=digest(msgspec.to_builtins(context.body)))
    ruler = Governor(lambda: Governance(tenant_keys={}))
    event = call(text=MAIL, ctx=context.id)
    protected = ruler.protect("a", [Content("text/plain", MAIL.encode()), context, opened(session_id=MAIL), event])
    assert MAIL.encode() not in text(protected)
    stripped, kept = protected[1], record(protected)
    assert kept["ctx"] == stripped.id == digest(msgspec.to_builtins(stripped.body))
    assert kept["gov"]["eligibility"] == {"train": "deny"}
    assert record(ruler.protect("a", [call("e2", ctx=context.id)]), "e2")["ctx"] == stripped.id


def test_a_tool_description_with_a_secret_is_stored_under_the_digest_of_what_is_left() -> None:
    tool = orjson.dumps({"name": "mail", "description": f"writes to {MAIL}"})
    body = ContextBody(tools=[ToolInfo(name="mail", schema=digest_bytes(tool))])
    context = Context(atdp="1.0", id=digest(msgspec.to_builtins(body)), body=body)
    ruler = governor()
    content, changed, _, event = ruler.protect(
        "a", [Content("application/json", tool), context, opened(), call(ctx=context.id)]
    )
    assert MAIL.encode() not in content.data
    assert changed.body.tools[0].schema == digest_bytes(content.data)
    assert event.ctx == changed.id == digest(msgspec.to_builtins(changed.body))
    assert record(ruler.protect("a", [call("e2", ctx=context.id)]), "e2")["ctx"] == changed.id


def test_a_signal_for_a_session_named_by_an_address_still_finds_its_trajectory() -> None:
    ruler = governor()
    header = ruler.protect("a", [opened(session_id=MAIL)])[0]
    late = ruler.protect("a", [signal("n1", "session", MAIL)])[-1]
    assert MAIL not in (header.session_id, late.target)
    assert header.session_id == late.target == ruler.name("a", MAIL)


def test_what_a_signal_says_is_redacted_and_sealed_under_its_own_key() -> None:
    annotation = msgspec.structs.replace(signal("n1", "event", "e1").annotation, explanation=f"wrong, ask {MAIL}")
    protected = governor().protect("a", [msgspec.structs.replace(signal("n1", "event", "e1"), annotation=annotation)])
    assert MAIL.encode() not in text(protected)
    sealed = protected[-1].annotation.ext["sealed"]
    assert sealed["key"] == "n1"
    assert list(opening(protected, KEYS, "n1")(sealed).values()) == [MAIL]


def test_a_sealed_value_opens_only_in_its_place_and_only_as_recorded() -> None:
    protected = governor().protect("a", [opened(), call(text=f"I am {MAIL}")])
    stored = record(protected)
    open_ = opening(protected, KEYS)
    with pytest.raises(SealBroken, match="committed"):
        open_({**stored["ext"]["sealed"], "commit": stored["tokens"]["logprobs"]["commit"]})
    key = next(d for d in protected if isinstance(d, TrajectoryKey))
    with pytest.raises(Exception, match="not what a's key wrapped"):
        KEYS.unwrap("t2", key.key_version, key.wrapped)


def test_a_commitment_says_nothing_about_its_value() -> None:
    first, second = (
        record(governor().protect("a", [opened(), call(text=f"I am {MAIL}")]))["ext"]["sealed"]["commit"] for _ in "12"
    )
    assert first != second


def test_pseudonyms_are_the_same_in_every_event_after_a_restart_and_differ_between_tenants() -> None:
    def named(ruler: Governor, tenant: str) -> str:
        return str(
            record(ruler.protect(tenant, [opened(), call(text=MAIL)]))["o"]["messages"][0]["parts"][0]["content"]
        )

    assert named(governor(), "a") == named(governor(), "a") != named(governor(), "b")


def test_a_retention_beyond_the_calendar_that_was_set_earlier_costs_no_payload() -> None:
    (header,) = governor(retention_days=3_000_000).protect("a", [opened()])
    assert msgspec.to_builtins(header)["gov"]["retention"]["expires_at"] == "9999-12-31T23:59:59.999Z"


def test_retention_and_basis_of_the_policy_are_in_the_header() -> None:
    header = governor(retention_days=30, legal_hold=True, basis="contract", basis_ref="DPA-7").protect("a", [opened()])[
        0
    ]
    gov = msgspec.to_builtins(header.gov)
    assert gov["retention"]["policy"] == "30d"
    assert gov["retention"]["legal_hold"] is True
    assert gov["retention"]["expires_at"] > header.time
    assert gov["basis"] == {"kind": "contract", "ref": "DPA-7"}


def test_a_field_rule_by_path_hides_the_field_in_objects_and_in_text() -> None:
    rule = FieldRule(field="arguments.customer.name", entity="PERSON")
    raw = '{"customer":{"name": "Mia Li"},"n":1}'
    part = Part(type="tool_call", id="c", name="x", arguments={"customer": {"name": "Mia Li"}, "n": 1}, raw=raw)
    event = call(a=msgspec.structs.replace(call().a, messages=[Message(role="assistant", parts=[part])]))
    protected = governor(fields=(rule,)).protect("a", [opened(), event])
    assert b"Mia Li" not in text(protected)
    stored = record(protected)["a"]["messages"][0]["parts"][0]
    assert orjson.loads(stored["raw"]) == stored["arguments"]
    assert stored["raw"].endswith(',"n":1}')


def test_a_policy_that_changes_takes_effect_at_once_and_the_trajectory_goes_on() -> None:
    governance = Governance()
    ruler = Governor(lambda: governance)
    ruler.protect("a", [opened(), call("e1", text=MAIL)])
    governance.policies = {"a": governor(redaction="secrets")._policy("a")}
    later = record(ruler.protect("a", [call("e2", text="ada@example.org")]), "e2")
    assert later["o"]["messages"][0]["parts"][0]["content"] == "ada@example.org"


@pytest.mark.parametrize(
    "odd",
    [None, 1.5, b"bytes", object(), [[[[]]]], {"a": {1: 2}}, "x" * 5_000_000, float("nan")],
    ids=lambda v: str(v)[:9],
)
def test_whatever_comes_is_stored_or_replaced_and_never_raises(odd: Any) -> None:
    deep: Any = "deep"
    for _ in range(3000):
        deep = {"in": deep}
    event = call(y=Outcome(status="ok", result={"odd": odd, "deep": deep, "mail": MAIL}))
    try:
        protected = governor().protect("a", [opened(), event])
    except RecursionError:  # pragma: no cover
        pytest.fail("raised")
    stored = msgspec.structs.asdict(protected[-1])
    assert MAIL not in repr(stored["y"])[:20_000_000]
    assert CONTEXT.id == protected[-1].ctx
    assert said("x").role == "user"


def test_the_store_is_asked_for_a_data_key_only_where_another_process_may_have_made_it() -> None:
    asked: list[str] = []

    def key_of(_: str, id: str) -> None:
        asked.append(id)

    governing = Governor(lambda: Governance(), key_of)
    governing.protect("a", [opened("t1"), call(text=MAIL, trajectory="t1")])
    governing.protect("a", [call(text=MAIL, trajectory="t2")])
    assert asked == ["t2"]


def test_what_was_prepared_and_is_clean_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    find = Detector.find_in

    def counted(self: Detector, text: str, key: str) -> Any:
        searched.append(text)
        return find(self, text, key)

    monkeypatch.setattr(Detector, "find_in", counted)
    ruler, asked = governor(), "my order has not come. " * 8
    first = [opened(), call("e0", text=asked, kind="user_message")]
    ready = ruler.prepare("a", first)
    assert ready is not None
    assert searched.count(asked) == 1
    whole = [*first, call("e1", text="thanks")]
    protected = ruler.protect("a", whole, ready)
    assert protected == governor().protect("a", whole)
    assert searched.count(asked) == 2  # by the other one


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        pytest.param(f"I am {MAIL}", "hello", id="in what was asked"),
        pytest.param("try hunter2-x again", "password: hunter2-x", id="explained by the answer"),
        pytest.param("password: hunter2-x", "hunter2-x is too short", id="explained by the request"),
        pytest.param("my order", f"write to {MAIL}", id="in the answer"),
    ],
)
def test_what_is_hidden_does_not_depend_on_what_was_prepared(asked: str, answered: str) -> None:
    first, rest = [opened(), call("e0", text=asked, answer="", kind="user_message")], call("e1", answer=answered)
    ruler = governor()
    prepared = ruler.protect("a", [*first, rest], ruler.prepare("a", first))
    alone = governor().protect("a", [*first, rest])
    assert not any(secret in text(prepared) for secret in (MAIL.encode(), b"hunter2-x"))
    assert [record(prepared, id)["o"] for id in ("e0", "e1")] == [record(alone, id)["o"] for id in ("e0", "e1")]
    assert [record(prepared, id)["a"] for id in ("e0", "e1")] == [record(alone, id)["a"] for id in ("e0", "e1")]
    tokens = record(prepared)["tokens"]["prompt_token_ids"]
    assert ("sealed" in tokens) == ("sealed" in record(alone)["tokens"]["prompt_token_ids"])


def test_a_policy_that_changed_after_the_first_part_was_prepared_holds_for_all_of_it() -> None:
    governance = Governance()
    ruler, first = Governor(lambda: governance), [opened(), call("e0", text="project nightfall", kind="user_message")]
    ready = ruler.prepare("a", first)
    assert ready is not None
    secret = Dictionary(name="project", terms=("nightfall",))
    governance.policies = {"a": TenantPolicy(dictionaries=(secret,))}
    assert b"nightfall" not in text(ruler.protect("a", [*first, call()], ready))


def test_a_value_recognised_after_the_first_part_was_prepared_is_hidden_in_it() -> None:
    """Two requests of one conversation at once: what one of them tells to be a secret stands in the other, too."""
    ruler = governor()
    ruler.protect("a", [CONTEXT, opened()])
    ready = ruler.prepare("a", first := [call("e1", text="is it 88552211-Q?", kind="user_message")])
    assert ready is not None
    ruler.protect("a", [call("e2", text="my password: 88552211-Q")])
    assert b"88552211-Q" not in text(ruler.protect("a", [*first, call("e3")], ready))


def test_a_governor_that_succeeds_another_seals_ids_of_what_the_other_may_have_redacted() -> None:
    """A header that comes again does not say what came between."""
    governance, began_before = Governance(), opened(time="2026-01-01T00:00:00.000Z")
    successor = Governor(lambda: governance, succeeds=True)
    assert "sealed" in record(successor.protect("a", [began_before, call()]))["tokens"]["prompt_token_ids"]
    began_since = opened("t2", time="2999-01-01T00:00:00.000Z")
    assert "gov" not in record(successor.protect("a", [began_since, call(trajectory="t2")]))


def test_a_governor_that_succeeds_another_asks_the_store_for_the_key_of_whatever_comes() -> None:
    """The one before may have made a key for it, and the store keeps the first."""
    governance = Governance()
    first = Governor(lambda: governance).protect("a", [opened(), call(text=MAIL)])
    (key,) = (draft for draft in first if isinstance(draft, TrajectoryKey))
    successor = Governor(lambda: governance, lambda tenant, id: (key.key_version, key.wrapped), succeeds=True)
    again = successor.protect("a", [opened(), call(text=MAIL)])
    blobs = [draft for draft in (*again, key) if not isinstance(draft, TrajectoryKey) or draft is key]
    assert list(opening(blobs, KEYS)(record(again)["ext"]["sealed"]).values()) == [MAIL]


def test_a_digest_whose_digits_look_like_a_licence_number_stays_a_digest() -> None:
    """Of a tool's schema it names the content; changed, the context would be none and the exchange lose its payload."""
    digest = "sha256:d4e33a81bdb0dea7be4173c6400670660ada3a9255" + "ab1234563" + "817e3495ba37b"
    from services.proxy.protection import _with_digests_of

    body = {"tools": [{"name": "a@b.example", "schema": digest}], "model": {"name": "m"}}
    redacted = {"tools": [{"name": "<EMAIL>", "schema": "sha256:d4<MEDICAL_LICENSE_1>"}], "model": {"name": "m"}}
    assert _with_digests_of(body, redacted)["tools"] == [{"name": "<EMAIL>", "schema": digest}]
    assert _with_digests_of(body, body) is body
