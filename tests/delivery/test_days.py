"""Approvals asked on a Monday, everything killed, answered on the Thursday, or never; on real Prefect and MLflow.

One deployment lives three times: today, three days later, nine days later. Between two lives every process of it is
killed at once (SIGKILL); what is left is what it had written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry import audit, tenants, tracking
from tests.chromium import CHROMIUM, chromium, sign_in
from tests.delivery.deployment import COMPILER, Deployment, wait_for

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(600),
    pytest.mark.skipif(COMPILER is None, reason="the clock that is loaded before libc needs a C compiler"),
]

AGENTS = ("support", "shop", "till", "office", "desk")
"""Approved in MLflow; by three ways at once; rejected; approved in the console; never by the second approver."""
THURSDAY, WEDNESDAY = 3, 9


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    running = Deployment(tmp_path_factory.mktemp("days"))
    try:
        running.start(day=0)
        tenants.create_tenant(running.connection, "acme", train="allow")
        for agent in AGENTS:
            running.agent(agent)
        yield running
    finally:
        running.close()


def asks_for(running: Deployment, agents: Sequence[str]) -> Deployment:
    """Version 2 of each has passed its canary, and its run is suspended. Prefect runs two at a time."""
    with running.customers(*agents):
        for agent in agents:
            running.deliver(agent)
        wait_for("that the approvals are asked for", lambda: all(map(running.asked, agents)))
    return running


@pytest.fixture(scope="module")
def two_asked(deployment: Deployment) -> Deployment:
    return asks_for(deployment, AGENTS[:2])


@pytest.fixture(scope="module")
def monday(two_asked: Deployment) -> Deployment:
    return asks_for(two_asked, AGENTS[2:])


@pytest.fixture(scope="module")
def thursday(monday: Deployment) -> Deployment:
    """All of it killed while it waits, and started three days later."""
    assert monday.kill() > len(AGENTS)
    with pytest.raises(httpx.TransportError):
        httpx.get(monday.config.prefect_api_url + "/health")
    assert monday.decide("shop", "approve", "dana").returncode == 0  # the record needs nothing that runs
    monday.start(day=THURSDAY)
    return monday


def test_on_monday_all_is_started(deployment: Deployment) -> None:
    assert [deployment.champion(agent) for agent in AGENTS] == ["1"] * len(AGENTS)


def test_on_monday_a_candidate_passes_its_canary_and_waits_for_two_people(two_asked: Deployment) -> None:
    asked = two_asked.approval("support")
    assert (asked.missing, two_asked.state("support")) == (2, "approval")
    assert asked.evidence["canary"]["sessions"] >= two_asked.config.delivery.canary_min_sessions


def test_on_monday_all_wait_and_nobody_is_promoted(monday: Deployment) -> None:
    assert [monday.approval(agent).missing for agent in AGENTS] == [2] * len(AGENTS)
    assert [monday.champion(agent) for agent in AGENTS] == ["1"] * len(AGENTS)


def test_on_thursday_after_a_restart_of_everything_they_wait_on(thursday: Deployment) -> None:
    for agent in AGENTS:
        assert (thursday.run(agent)["state_type"], thursday.approval(agent).status) == ("PAUSED", "pending")
        assert (thursday.state(agent), thursday.promotions(agent)) == ("approval", 0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: `make browser`")
    with chromium() as running:
        yield running


def test_a_tag_set_on_mlflow_s_page_promotes_the_version_once(thursday: Deployment, browser: Any) -> None:
    assert thursday.decide("support", "approve", "dana").returncode == 0
    assert thursday.champion("support") == "1"
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{thursday.config.mlflow_url}/#/models/support/versions/2")
    set_tag(page, "approval", "approved by eli: evidence is clear")
    with thursday.customers("support"):
        wait_for("promotion", lambda: thursday.champion("support") == "2")
        wait_for("the end of the watch", lambda: thursday.outcomes("support"))
    page.reload()
    page.get_by_text("approval_record").first.wait_for(timeout=30_000)
    if "EVOPLANE_SCREENSHOTS" in os.environ:
        page.wait_for_timeout(1000)
        middle = {"x": 198, "y": 8, "width": 746, "height": 800}
        page.screenshot(path=Path(os.environ["EVOPLANE_SCREENSHOTS"]) / "mlflow-approval.png", clip=middle)
    page.close()
    assert thursday.said("support") == [
        ("dana", "approval.granted", "cli"),
        ("eli", "approval.approved", "mlflow"),
    ]
    assert thursday.outcomes("support") == ["Promoted"]
    tags = tracking.client(thursday.config).get_model_version("support", "2").tags
    assert (tags["approval"], tags["approval_record"]) == ("approved by eli: evidence is clear", "approved")
    assert tags["approval_id"] == thursday.approval("support").id
    again = thursday.decide("support", "approve", "eli")
    assert json.loads(again.stdout)["changed"] is False
    assert thursday.promotions("support") == 1


def test_the_console_s_button_promotes_the_version_once(thursday: Deployment, browser: Any) -> None:
    assert thursday.decide("office", "approve", "dana").returncode == 0
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    sign_in(page, thursday.config.console_url, thursday.operators["office"])
    page.click(".ask a")
    page.fill("#reason", "reads well")
    page.click("button.yes")
    page.wait_for_selector("[role=status]")
    page.close()
    with thursday.customers("office"):
        wait_for("the end of the watch", lambda: thursday.outcomes("office"))
    assert thursday.said("office")[-1] == ("eli", "approval.approved", "console")
    assert thursday.approval("office").grants[-1].authenticated
    assert (thursday.outcomes("office"), thursday.promotions("office")) == (["Promoted"], 1)


def test_three_ways_at_once_promote_once(thursday: Deployment) -> None:
    assert thursday.approval("shop").missing == 1

    def form() -> str:
        return str(thursday.form("shop", "approve", "eli")["status"])

    def command() -> bool:
        return bool(json.loads(thursday.decide("shop", "approve", "eli").stdout)["changed"])

    def tag() -> int:
        told = {"name": "shop", "version": "2", "key": "approval", "value": "approved by eli"}
        url = f"{thursday.config.mlflow_url}/api/2.0/mlflow/model-versions/set-tag"
        return httpx.post(url, json=told, timeout=30).status_code

    with thursday.customers("shop"), ThreadPoolExecutor(4) as pool:
        ways: list[Any] = [pool.submit(way) for way in (form, command, command, tag)]
        assert [way.result() for way in ways][3] == 200
        wait_for("the end of the delivery", lambda: thursday.outcomes("shop"))
    assert (thursday.champion("shop"), thursday.promotions("shop")) == ("2", 1)
    assert thursday.outcomes("shop") == ["Promoted"]
    assert [(who, what) for who, what, _ in thursday.said("shop")] == [
        ("dana", "approval.granted"),
        ("eli", "approval.approved"),
    ]


def test_one_no_ends_the_delivery_and_a_stranger_s_yes_is_refused(thursday: Deployment) -> None:
    refused = thursday.decide("till", "approve", "mallory")
    assert refused.returncode != 0 and "may not decide" in refused.stderr
    assert thursday.decide("till", "approve", "dana").returncode == 0
    assert thursday.decide("till", "reject", "eli").returncode == 0
    wait_for("the end of the delivery", lambda: thursday.outcomes("till"))
    assert (thursday.outcomes("till"), thursday.state("till")) == (["Rejected"], "rejected")
    assert (thursday.champion("till"), thursday.promotions("till")) == ("1", 0)


def test_without_the_second_approver_it_has_expired_after_a_week(thursday: Deployment) -> None:
    assert thursday.decide("desk", "approve", "dana").returncode == 0
    assert thursday.state("desk") == "approval"
    thursday.kill()
    thursday.start(day=WEDNESDAY)
    wait_for("the end of the delivery", lambda: thursday.outcomes("desk"))
    assert (thursday.outcomes("desk"), thursday.state("desk")) == (["Expired"], "expired")
    late = thursday.decide("desk", "approve", "eli")
    assert late.returncode != 0 and "expired" in late.stderr
    assert (thursday.champion("desk"), thursday.promotions("desk")) == ("1", 0)
    assert [thursday.promotions(agent) for agent in AGENTS] == [1, 1, 0, 1, 0]  # nothing began again
    assert audit.verify(thursday.connection) == []


def set_tag(page: Any, name: str, value: str) -> None:
    """As a person does it, at the foot of a model version's page."""
    section = page.get_by_test_id("tags-section")
    section.get_by_test_id("tags-form-input-name").fill(name)
    section.get_by_test_id("tags-form-input-value").fill(value)
    section.get_by_test_id("add-tag-button").click()
    section.get_by_text(value).first.wait_for(timeout=30_000)
