"""The console shows what its viewer may see, and writes only decisions that they may make."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from dashboards.console.access import IDLE_S, Logins
from registry import approvals, control, roles, tenants
from tests.dashboards.deployment import Deployment

PAGES = ("/", "/agents/support", "/agents/support/parts/quality", "/agents/support/parts/canary",
         "/agents/support/trajectories", "/agents/support/versions/2", "/approvals",
         "/trajectories/acme/tr_acme_1", "/events/ev_acme_1/why", "/find?q=nothing")  # fmt: skip


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
                   "/agents/support/trajectories?tenant=other"):  # fmt: skip
        assert console.get(hidden).status_code == 404, hidden
    assert "Nothing has the id" in console.get("/find?q=tr_other_1").text
    for page in PAGES[1:]:
        assert "other asks" not in console.get(page).text
        assert "other: 45 days" not in console.get(page).text


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
