"""The console shows what its viewer may see, and writes only decisions that they may make."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from msgspec import UnsetType
from msgspec.structs import replace

from atdp import records as atdp_records
from atdp.records import AnnotationDraft, MessagePrefix, Metadata, Scale, Source, Target
from dashboards.console import credit, trajectory
from dashboards.console.access import IDLE_S, Logins
from dashboards.console.app import create_app
from dashboards.console.credit import CreditView
from evaluators import triggers, watching
from evaluators.triggers import Outcome, Watch
from evaluators.watching import LastDrift
from evoplane.settings import Settings
from registry import alerts, approvals, control, decisions, pointers, roles, tenants
from registry.alerts import Cause
from registry.manifest import AgentVersion, Manifest, Policy, Skill
from services.proxy.reader import open_reader
from services.proxy.store import open_store
from tests.dashboards.deployment import Deployment, add, made
from tests.governance.drafting import call, opened
from tests.proxy.drafting import CONTEXT, event

PAGES = ("/", "/agents/support", "/agents/support/parts/quality", "/agents/support/parts/canary",
         "/agents/support/parts/watching", "/agents/support/trajectories", "/agents/support/versions/2", "/approvals",
         "/trajectories/acme/tr_acme_1", "/trajectories/acme/tr_acme_1/parts/credit", "/events/ev_acme_1/why",
         "/find?q=nothing")  # fmt: skip


def login(console: TestClient, secret: str, to: str = "/") -> int:
    status: int = console.post("/login", data={"key": secret, "to": to}).status_code
    return status


def csrf(text: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found
    return found[1]


@pytest.mark.parametrize("page", PAGES)
def test_nobody_sees_a_page_without_a_login(page: str, console: TestClient) -> None:
    reply = console.get(page)
    assert (reply.status_code, reply.headers["location"].split("?")[0]) == (303, "/login")


@pytest.mark.parametrize("page", PAGES[1:])
def test_every_page_is_there_for_whoever_may_read(page: str, console: TestClient, deployment: Deployment) -> None:
    assert login(console, deployment.keys["ravi"]) == 303
    reply = console.get(page)
    assert reply.status_code == 200, reply.text[:500]
    assert reply.headers["content-security-policy"].startswith("default-src 'self'")
    assert "<script>" not in reply.text
    assert 'style="' not in reply.text


def test_a_client_s_key_may_not_look(console: TestClient, deployment: Deployment) -> None:
    assert login(console, deployment.keys["client"]) == 403
    assert login(console, "evo_wrong") == 403


def test_wrong_keys_from_one_address_have_to_wait(console: TestClient, deployment: Deployment) -> None:
    for _ in range(10):
        login(console, "evo_wrong")
    assert "Too many" in console.post("/login", data={"key": deployment.keys["dana"]}).text


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x"])
def test_a_login_leads_nowhere_else(to: str, console: TestClient, deployment: Deployment) -> None:
    reply = console.post("/login", data={"key": deployment.keys["dana"], "to": to})
    assert reply.headers["location"] == "/"


def test_a_viewer_sees_nothing_of_another_tenant_or_agent(console: TestClient, deployment: Deployment) -> None:
    login(console, deployment.keys["ravi"])
    for hidden in ("/trajectories/other/tr_other_1", "/agents/sales", "/events/ev_other_1/why",
                   "/trajectories/other/tr_other_1/parts/credit", "/agents/sales/parts/watching",
                   "/agents/support/trajectories?tenant=other"):  # fmt: skip
        assert console.get(hidden).status_code == 404, hidden
    assert "Nothing has the id" in console.get("/find?q=tr_other_1").text
    for page in PAGES[1:]:
        assert "other asks" not in console.get(page).text
        assert "other: 45 days" not in console.get(page).text


async def test_what_is_another_agent_s_of_the_same_tenant_is_as_if_it_did_not_exist(tmp_path: Path) -> None:
    deployment = made(tmp_path, 1)
    await add(deployment.config, "acme", 9, "sales")
    connection = control.connect(deployment.config.control_db)
    asked = approvals.request(connection, "sales", "2", {}, 3600)

    with TestClient(create_app(deployment.config), follow_redirects=False) as console:
        login(console, deployment.keys["ravi"])

        def told(page: str, id: str) -> tuple[int, str | None, str]:
            reply = console.get(page.format(id))
            return reply.status_code, reply.headers.get("location"), reply.text.replace(id, "ID")

        for page, hidden in (
            ("/find?q={}", "tr_acme_9"),
            ("/find?q={}", "ev_acme_9"),
            ("/find?q={}", "an_acme_9"),
            ("/find?q={}", "se_acme_9"),
            ("/events/{}/why", "ev_acme_9"),
            ("/trajectories/acme/{}", "tr_acme_9"),
            ("/trajectories/acme/{}/parts/credit", "tr_acme_9"),
            ("/agents/support/trajectories?tenant=acme&before={}", "tr_acme_9"),
            ("/approvals/{}", asked.id),
        ):
            assert told(page, hidden) == told(page, "no_such_id"), (page, hidden)


def test_an_operator_of_all_tenants_sees_both(console: TestClient, deployment: Deployment) -> None:
    connection = control.connect(deployment.config.control_db)
    roles.give(connection, "zoe", "operator", None, "test")
    login(console, deployment.keys["zoe"])
    assert console.get("/trajectories/other/tr_other_1").status_code == 200
    assert console.get("/trajectories/acme/tr_acme_1").status_code == 200
    roles.take(connection, "zoe", "operator", None, "test")
    assert console.get("/trajectories/acme/tr_acme_1").status_code == 404


def test_what_was_said_is_shown_as_text(console: TestClient, deployment: Deployment) -> None:
    login(console, deployment.keys["ravi"])
    text = console.get("/trajectories/acme/tr_acme_1").text
    assert "acme asks &lt;b&gt;1&lt;/b&gt;" in text
    assert "- 45 days" in text
    assert "resolved" in text
    assert "Its chain verifies" in text


def test_a_judged_step_shows_its_reward_its_signals_and_what_led_to_it(
    console: TestClient, deployment: Deployment
) -> None:
    login(console, deployment.keys["ravi"])
    whole = console.get("/trajectories/acme/tr_acme_1").text
    assert 'data-part="/trajectories/acme/tr_acme_1/parts/credit"' in whole
    text = console.get("/trajectories/acme/tr_acme_1/parts/credit").text
    assert "<strong>1.00</strong>" in text and "by resolved (environment)" in text
    assert "the event itself" in text and "memory item" in text


async def test_a_signal_that_did_not_count_says_why(tmp_path: Path) -> None:
    late = replace(signal("an_late"), time="2026-01-02T00:00:00Z", value=0.0, supersedes="an_first")
    said = replace(signal("an_mood"), name="mood")
    shown = await credit_of(tmp_path, [signal("an_first"), late, said])
    (step,) = [s for s in shown.steps if s.id == "e0"]
    assert shown.trajectory is not None and shown.trajectory.reward == 0.0
    ignored = {s.id: s.ignored for s in step.signals}
    assert ignored["an_late"] == "" and "superseded by an_late" in ignored["an_first"]
    assert ignored["an_mood"] == "no clause of the rule names it"


async def test_a_trajectory_nobody_judged_has_no_credit_and_one_judged_as_a_whole_that_of_its_last_answer(
    tmp_path: Path,
) -> None:
    assert (await credit_of(tmp_path / "none", [])).steps == []
    whole = replace(signal("an_whole"), targets=[Target(trajectory_id="t1")])
    (step,) = (await credit_of(tmp_path / "whole", [whole])).steps
    assert (step.id, step.own, step.number) == ("e1", False, 3)
    assert sum(c.share for c in step.credit) == pytest.approx(1, abs=0.05)


def signal(id: str) -> AnnotationDraft:
    return AnnotationDraft(
        atdp="1.0", id=id, trajectory_id="t1", kind="reward", name="resolved",
        source=Source(kind="environment", id="x"), targets=[Target(trajectory_id="t1", event_id="e0")],
        time="2026-01-01T00:00:00Z", value=1.0, scale=Scale(min=0, max=1, higher_is_better=True),
    )  # fmt: skip


async def credit_of(folder: Path, signals: list[AnnotationDraft]) -> CreditView:
    config = Settings.model_validate({"paths": {"var": folder}})
    store = open_store(config)
    await store.start()
    steps = [event("u0"), call("e0", "ask", "yes"), call("e1", "ask again", "no")]
    await store.append("acme", [CONTEXT, opened("t1"), *steps, *signals])
    await store.close()
    found = credit.view(config, open_reader(config), "acme", "t1")
    assert found is not None
    return found


def test_the_monitor_s_triggers_drift_and_alerts_are_shown_to_whoever_may_see_all_tenants(watched: Deployment) -> None:
    with TestClient(create_app(watched.config), follow_redirects=False) as console:
        login(console, watched.keys["ravi"])
        mine = console.get("/agents/support/parts/watching").text
        assert "acme" in mine and "e-value" in mine
        assert "other" not in mine.replace("another", "") and "all tenants together" in mine
        assert "2 more about tenants you may not see" in mine and "success of acme" in mine
        connection = control.connect(watched.config.control_db)
        roles.give(connection, "ravi", "analyst", None, "test")
        text = console.get("/agents/support/parts/watching").text
    assert "all of it is below 0.9" in text and '<span class="chip status-error">alarm</span>' in text
    assert "success of tenant other 0.20" in text and "more about" not in text
    assert "latency_ms (p 0.001, ks_d 0.40)" in text
    assert text.index("newer reason") < text.index("success of tenant other")


@pytest.fixture
def watched(tmp_path: Path) -> Deployment:
    """The monitor has counted 60 outcomes of each tenant and found drift; two alerts."""
    found = made(tmp_path, conversations=2)
    with watching.memo(found.config.var, "support") as memo:
        memo.watch = Watch(version="1")
        outcomes = [Outcome(tenant=t, value=float(t == "acme")) for _ in range(60) for t in ("acme", "other")]
        triggers.follow(memo.watch, outcomes, found.config.monitor.alpha)
        memo.last_drift = LastDrift(
            at=control.now(), state="drift", moved=("latency_ms (p 0.001, ks_d 0.40)",), current=30, reference=30
        )
    connection = control.connect(found.config.control_db)
    for cause, reason in (
        ("success", "success 0.50 < 0.90; success of tenant other 0.20 < 0.90"),
        ("success of other", "success of tenant other 0.20 < 0.90"),
        ("success of acme", "success of tenant acme 0.50 < 0.90"),
    ):
        alert, _ = alerts.raise_alert(connection, "support", Cause(cause, reason, control.now(), "1"))
    alerts.take(connection, alert.id, "run")
    alerts.end(connection, alert.id, "no candidate was better")
    alerts.raise_alert(connection, "support", Cause("drop", "newer reason", control.now(), "1"))
    return found


def test_an_id_leads_to_its_trajectory(console: TestClient, deployment: Deployment) -> None:
    login(console, deployment.keys["ravi"])
    for wanted in ("tr_acme_2", "ev_acme_2", "an_acme_2", "se_acme_2"):
        assert console.get(f"/find?q={wanted}").headers["location"].startswith("/trajectories/acme/tr_acme_2")


def test_pages_of_trajectories_show_each_once(console: TestClient, deployment: Deployment) -> None:
    login(console, deployment.keys["ravi"])
    text = console.get("/agents/support/trajectories").text
    assert len(set(re.findall(r"/trajectories/acme/(tr_acme_\d+)", text))) == 30
    older = console.get("/agents/support/trajectories?tenant=acme&before=tr_acme_10").text
    assert set(re.findall(r"/trajectories/acme/(tr_acme_\d+)", older)) == {f"tr_acme_{n}" for n in range(10)}


def test_only_a_form_of_this_login_by_somebody_who_may_is_a_decision(
    console: TestClient, deployment: Deployment
) -> None:
    place = f"/approvals/{deployment.approval}"
    login(console, deployment.keys["ravi"])
    token = csrf(console.get("/approvals").text)
    reply = console.post(place, data={"decision": "approved", "csrf": token})
    assert reply.status_code == 409
    assert "may not approve" in reply.text
    login(console, deployment.keys["dana"])
    assert console.post(place, data={"decision": "approved"}).status_code == 403
    assert console.post(place, data={"decision": "approved", "csrf": token}).status_code == 403
    connection = control.connect(deployment.config.control_db)
    assert approvals.get(connection, deployment.approval).status == "pending"
    token = csrf(console.get(place).text)
    said = {"decision": "approved", "csrf": token, "reason": "reads well"}
    assert console.post(place, data=said).headers["location"] == f"{place}?said=recorded"
    decided = approvals.get(connection, deployment.approval)
    assert (decided.status, decided.decided_by, decided.channel, decided.reason) == (
        "approved", "dana", "console", "reads well",
    )  # fmt: skip
    assert decided.grants[0].authenticated
    assert console.post(place, data=said).headers["location"] == f"{place}?said=already"
    assert console.post(place, data={**said, "decision": "rejected"}).status_code == 409


def test_a_revoked_key_and_an_idle_login_are_out(deployment: Deployment) -> None:
    connection = control.connect(deployment.config.control_db)
    key, secret = tenants.create_key(connection, "acme", "support", "operate", "tess")
    logins = Logins()
    token = logins.enter(connection, secret, "here", now=0.0)
    assert logins.viewer(connection, token, now=1.0) is not None
    assert logins.viewer(connection, token, now=2.0 + IDLE_S) is None
    token = logins.enter(connection, secret, "here", now=0.0)
    tenants.revoke_key(connection, key.id)
    assert logins.viewer(connection, token, now=1.0) is None


async def test_a_long_trajectory_comes_in_pages_that_show_only_what_is_new(tmp_path: Path) -> None:
    config = Settings.model_validate({"paths": {"var": tmp_path}})
    store = open_store(config)
    await store.start()
    calls = [call(f"e{n}", f"ask {n}", f"answer {n}") for n in range(230)]
    for n in range(1, 230):
        asked = calls[n].o
        assert not isinstance(asked, UnsetType) and isinstance(asked.messages, list)
        form = MessagePrefix(prefix=f"e{n - 1}", append=list(asked.messages))
        calls[n] = replace(calls[n], o=replace(asked, messages=form))
    odd = event(
        "odd",
        y=atdp_records.Outcome(status="ok", result={"sealed": 1, "labels": 5}),
        ext={"overlays": 3, "response": 4},
    )
    await store.append("acme", [CONTEXT, opened("t1"), *calls, odd])
    await store.close()
    reader = open_reader(config)
    found = trajectory.view(reader, "acme", "t1")
    assert found is not None
    assert (found.first, len(found.steps), found.of, found.next) == (1, 100, 231, 101)
    last = trajectory.view(reader, "acme", "t1", at="odd")
    assert last is not None
    assert (last.first, len(last.steps), last.previous, last.next) == (201, 31, 101, None)
    assert [p.text for p in last.steps[5].sent] == ["as of step e204", "ask 205"]
    assert credit.view(config, reader, "acme", "t1") is not None
    resolved = reader.resolve_all("acme", reader.records("acme", "t1"))
    assert resolved[1:][200] == reader.resolve("acme", reader.records("acme", "t1")[201])
    assert len(resolved[201]["o"]["messages"]) == 401


def test_what_quotes_all_tenants_is_for_whoever_may_see_them_and_for_approvers(tmp_path: Path) -> None:
    deployment = made(tmp_path, 1)
    connection = control.connect(deployment.config.control_db)
    candidate = {"summary": "1 fact", "diff": "+ other: 45 days", "risk": "low"}
    ranking = [{"name": "memory-1", "surface": "memory", "score": 0.1, "why": "best", "chosen": True}]
    decision = {"chosen": "memory-1", "reason": "drop", "data_gate": "passed", "ranking": ranking}
    decisions.put(connection, "dec_1", "support", decision | {"candidates": {"memory-1": candidate}})
    whose = {"name": "n", "when": "w", "steps": ("look at the other's books",)}
    skills = tuple(Skill(id=f"s_{t}", tenant=t, **(whose if t == "other" else whose | {"steps": ("mine",)}))
                   for t in ("acme", "other"))  # fmt: skip
    manifest = Manifest(policy=Policy(base="m", served_name="m"), skills=skills)
    version = AgentVersion(agent="support", version="3", digest=manifest.digest, manifest=manifest, parent="2",
                           lineage={"decision": "dec_1"})  # fmt: skip
    pointers.put_version(connection, version)
    roles.give(connection, "zoe", "operator", None, "test")
    app = create_app(deployment.config)
    shown = {}
    for who in ("ravi", "dana", "zoe"):
        with TestClient(app, follow_redirects=False) as console:
            login(console, deployment.keys[who])
            shown[who] = (console.get("/agents/support/versions/3").text,
                          console.get(f"/approvals/{deployment.approval}").text)  # fmt: skip
    assert "<li>mine</li>" in shown["ravi"][0] and "other&#39;s books" not in shown["ravi"][0]
    assert "+ other: 45 days" not in shown["ravi"][0] and "+ acme: 45 days" not in shown["ravi"][1]
    assert "+ acme: 45 days" in shown["dana"][1]
    assert "+ other: 45 days" in shown["zoe"][0] and "other&#39;s books" in shown["zoe"][0]


async def test_an_id_that_two_tenants_have_means_the_viewers_own(tmp_path: Path) -> None:
    deployment = made(tmp_path, 1)
    store = open_store(deployment.config)
    await store.start()
    for tenant in ("acme", "other"):
        trajectory_id = f"tr_same_{tenant}"
        said = call("ev_same", "asks", "answers", trajectory_id, m=Metadata(tags={"agent": "support"}))
        await store.append(tenant, [CONTEXT, opened(trajectory_id), said])
    await store.close()
    connection = control.connect(deployment.config.control_db)
    secret = tenants.create_key(connection, "other", "support", "evaluate", "otto")[1]
    with TestClient(create_app(deployment.config), follow_redirects=False) as console:
        login(console, secret)
        text = console.get("/events/ev_same/why").text
    assert "tenant other" in text and "tr_same_other" in text and "acme" not in text


def test_links_with_words_of_others_say_nothing_and_broken_ones_lead_home(
    console: TestClient, deployment: Deployment
) -> None:
    assert console.get("/login?to=//[").status_code == 200
    login(console, deployment.keys["ravi"])
    assert "call 555" not in console.get(f"/approvals/{deployment.approval}?problem=call+555").text


def test_a_database_that_is_locked_is_said_to_be(console: TestClient, deployment: Deployment) -> None:
    login(console, deployment.keys["ravi"])

    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "connect", locked)
        assert console.get("/agents/support").status_code == 503


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 303)])
def test_another_site_logs_nobody_in(site: str, status: int, console: TestClient, deployment: Deployment) -> None:
    form = {"key": deployment.keys["dana"]}
    assert console.post("/login", data=form, headers={"sec-fetch-site": site}).status_code == status
