"""One whole loop on real parts: captured traffic, an alert, a proven change, a person's yes in Prefect's form."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from evoplane.demo.customers import Customers
from evoplane.settings import Settings
from examples.support.scenario import TENANTS
from registry import approvals, audit, pointers, prefect_runs, tenants, tracking
from services.proxy.store import StoreReader, open_reader
from tests.chromium import chromium, needs_chromium
from tests.loop.conftest import AGENT, APPROVER

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

_FORM_ATTEMPTS = 5


def wait_for(what: str, true: Callable[[], object], timeout_s: float = 400) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.5)


def evoplane(*arguments: str) -> object:
    command = [str(Path(sys.executable).with_name("evoplane")), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def asked(config: Settings, connection: sqlite3.Connection, served: int, desk: object) -> approvals.Approval:
    """An approval that an alert led to, without anyone having called a flow."""
    prefect_runs.emit_event(config, "evoplane.monitor.requested", AGENT, {"agent": AGENT})

    def exposed() -> bool:
        route = pointers.read_route(connection, AGENT)
        return bool(route.shadow or route.canary)

    wait_for("a candidate meeting traffic", exposed)
    with Customers(desk, seed=500) as customers:  # type: ignore[arg-type]

        def pending() -> bool:
            customers.check()
            return bool(approvals.list_approvals(connection, AGENT))

        wait_for("an approval", pending)
    return approvals.list_approvals(connection, AGENT)[0]


def test_an_alert_leads_to_a_memory_change_that_waits_for_a_person(
    connection: sqlite3.Connection, asked: approvals.Approval
) -> None:
    candidate = pointers.versions(connection, AGENT)[asked.version]
    assert (asked.status, candidate.intervention, candidate.parent) == ("pending", "memory", "1")
    assert pointers.read_route(connection, AGENT).champion == "1"


def test_the_candidate_knows_what_the_customers_said_and_from_whom(
    connection: sqlite3.Connection, asked: approvals.Approval
) -> None:
    memory = pointers.versions(connection, AGENT)[asked.version].manifest.memory
    fresh = [item for item in memory if item.text == "The returns window is 45 days."]
    assert [item.tenant for item in fresh] == ["northwind"]
    assert len(fresh[0].provenance) >= 3


def test_mlflow_has_traces_of_the_agent_with_what_was_said_about_them(
    config: Settings, asked: approvals.Approval
) -> None:
    place = tracking.experiment(config, AGENT)
    traces = tracking.client(config).search_traces(locations=[place], include_spans=False)
    said = {(a.name, a.source.source_type, a.value) for trace in traces for a in trace.info.assessments}
    assert ("success", "CODE", False) in said
    assert ("user_correction", "HUMAN", True) in said


def test_the_console_shows_the_agent_to_an_operator(
    config: Settings, connection: sqlite3.Connection, asked: approvals.Approval
) -> None:
    _, secret = tenants.create_key(connection, next(iter(TENANTS)), AGENT, "operate", owner=APPROVER)
    with httpx.Client(base_url=config.console_url, timeout=60) as console:
        assert console.get(f"/agents/{AGENT}").status_code == 303
        assert console.post("/login", data={"key": secret, "to": f"/agents/{AGENT}"}).status_code == 303
        page = console.get(f"/agents/{AGENT}")
        assert page.status_code == 200
        assert f"Version {asked.version} waits for approval" in page.text
        watching = console.get(f"/agents/{AGENT}/parts/watching")
    assert watching.status_code == 200 and "Version 1" in watching.text


@needs_chromium
def test_a_person_approves_in_prefects_form_and_the_version_serves(
    config: Settings, connection: sqlite3.Connection, asked: approvals.Approval, pictures: Path
) -> None:
    wait_for(
        "the run to suspend",
        lambda: prefect_runs.read_run(config, str(asked.flow_run_id))["state_type"] == "PAUSED",
    )
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for _ in range(_FORM_ATTEMPTS):
            _fill_in_form(page, config, asked, pictures)
            if _left_suspension(config, asked):
                break
        wait_for("promotion", lambda: pointers.read_route(connection, AGENT).champion == asked.version)
    decided = approvals.get(connection, asked.id)
    assert (decided.status, decided.decided_by, decided.channel) == ("approved", APPROVER, "prefect-ui")


@pytest.fixture(scope="module")
def promoted(config: Settings, connection: sqlite3.Connection, asked: approvals.Approval) -> str:
    """The promoted version; approved on the command line where no browser did it."""
    if pointers.read_route(connection, AGENT).champion != asked.version:
        evoplane("approvals", "approve", asked.id, "--by", APPROVER)
        wait_for("promotion", lambda: pointers.read_route(connection, AGENT).champion == asked.version)
    wait_for("the aliases", lambda: tracking.client(config).get_registered_model(AGENT).aliases.get("champion"))
    return asked.version


def test_approving_again_promotes_nothing_again(
    connection: sqlite3.Connection, asked: approvals.Approval, promoted: str
) -> None:
    answer = evoplane("approvals", "approve", asked.id, "--by", APPROVER)
    assert isinstance(answer, dict)
    assert answer["changed"] is False
    assert [e.action for e in audit.entries(connection, AGENT)].count("promote") == 2  # the first version and this one


def test_mlflow_shows_the_version_with_alias_and_lineage(config: Settings, promoted: str) -> None:
    wait_for("the alias", lambda: tracking.client(config).get_registered_model(AGENT).aliases["champion"] == promoted)
    version = tracking.client(config).get_model_version(AGENT, promoted)
    assert version.tags["parent"] == "1"
    assert version.tags["intervention"] == "memory"
    assert version.tags["approver"] == APPROVER
    assert {"snapshot", "data_gate", "replay_improvement", "decision"} <= version.tags.keys()


def test_lineage_leads_from_an_answer_to_the_approver(config: Settings, promoted: str, desk: object) -> None:
    reader = open_reader(config)
    wait_for("an answer of the new version", lambda: _answers_of(reader, promoted) or _ask(desk))
    walked = evoplane("lineage", "--agent", AGENT, "--event", _answers_of(reader, promoted)[0])
    assert isinstance(walked, dict)
    newest, oldest = walked["lineage"][0], walked["lineage"][-1]
    assert (newest["version"], newest["approval"]["by"], oldest["version"]) == (promoted, APPROVER, "1")
    assert newest["evidence"]["snapshot"].endswith(".dir")


def test_nobody_altered_the_record(config: Settings, promoted: str) -> None:
    answer = evoplane("trajectories", "verify")
    assert isinstance(answer, dict)
    assert answer["ok"]
    assert answer["events"] > 80


@needs_chromium
def test_the_pages_people_watch_show_it(config: Settings, promoted: str, pictures: Path) -> None:
    prefect = f"http://127.0.0.1:{config.prefect.port}"
    runs = {run["name"]: run["id"] for run in prefect_runs.recent_runs(config, limit=50)}
    evolved = next(id for name, id in runs.items() if name.startswith(f"evolve {AGENT}"))
    projects = httpx.get(f"{config.evidently_url}/api/projects").json()
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1500, "height": 950})

        def picture(name: str, *texts: str) -> None:
            for text in texts:
                page.get_by_text(text).first.wait_for(timeout=60_000)
            page.wait_for_timeout(1500)  # charts draw after the text is there
            page.screenshot(path=pictures / f"{name}.png")

        page.goto(f"{prefect}/runs")
        picture("prefect-runs", f"deliver {AGENT} version {promoted}", f"evolve {AGENT}", f"monitor {AGENT}")
        page.goto(f"{prefect}/artifacts/artifact/{_artifact(config, evolved, f'decision-{AGENT}')}")
        picture("prefect-decision", "largest lower bound minus cost")
        page.goto(f"{prefect}/runs/flow-run/{evolved}")
        page.get_by_text("Artifacts", exact=True).first.click()
        picture("prefect-run", f"decision-{AGENT}", f"diagnosis-{AGENT}", f"data-gate-{AGENT}")
        page.goto(f"{config.mlflow_url}/#/models/{AGENT}")
        picture("mlflow-versions", "champion", "replay_improvement")
        page.goto(f"{config.mlflow_url}/#/models/{AGENT}/versions/{promoted}")
        picture("mlflow-version", "champion", "approver", APPROVER, "snapshot")
        page.goto(f"{config.evidently_url}/projects/{projects[0]['id']}")
        picture("evidently", f"{AGENT}: drifted columns at each look", "success: p-value")


def _fill_in_form(page: Any, config: Settings, asked: approvals.Approval, pictures: Path) -> None:
    page.goto(f"http://127.0.0.1:{config.prefect.port}/runs/flow-run/{asked.flow_run_id}")
    page.get_by_role("button", name="Resume").first.click()
    form = page.locator(".p-modal").first
    form.get_by_text("Reviewer").first.wait_for()
    reviewer, note = form.locator("textarea").all()
    reviewer.fill(APPROVER)
    note.fill("evidence is clear")
    form.locator(".p-select-button__control").focus()
    page.keyboard.press("ArrowDown")  # the list opens by keyboard
    page.get_by_text("approve", exact=True).last.click()
    page.screenshot(path=pictures / "prefect-approval.png")
    form.get_by_role("button", name="Submit").click()


def _left_suspension(config: Settings, asked: approvals.Approval) -> bool:
    """Prefect on SQLite may answer a valid form with 503 (database is locked); then a person submits it again."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if prefect_runs.read_run(config, str(asked.flow_run_id))["state_type"] != "PAUSED":
            return True
        time.sleep(0.5)
    return False


def _artifact(config: Settings, run: str, key: str) -> str:
    wanted = {"artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [run]}}}
    found = httpx.post(f"{config.prefect_api_url}/artifacts/filter", json=wanted).json()
    return str(found[0]["id"])


def _answers_of(reader: StoreReader, version: str) -> list[str]:
    records, _ = reader.events(agent=AGENT, kinds=("llm_call",), limit=10_000)
    return [r["id"] for _, r in records if (r["m"].get("tags") or {}).get("agent_version") == version
            and r["m"]["tags"]["role"] == "champion"]  # fmt: skip


def _ask(desk: object) -> None:
    import asyncio

    from tests.loop.conftest import outdated_questions

    asyncio.run(desk.serve(outdated_questions(6, seed=9)))  # type: ignore[attr-defined]
