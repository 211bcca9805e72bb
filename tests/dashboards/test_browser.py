"""The console in a real browser: accessible, by keyboard alone, in light and dark; its button decides."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from dashboards.console.app import create_app
from registry import approvals, control
from tests.chromium import chromium, needs_chromium, sign_in
from tests.dashboards.deployment import Deployment, made

PAGES = ("/agents/support", "/agents/support/trajectories", "/agents/support/versions/2",
         "/trajectories/acme/tr_acme_1", "/events/ev_acme_1/why", "/approvals")  # fmt: skip

pytestmark = [pytest.mark.stack, needs_chromium]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Deployment]]:
    deployment = made(tmp_path_factory.mktemp("browser"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(deployment.config), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}", deployment
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def visit(browser: Any, served: tuple[str, Deployment], scheme: str, owner: str = "dana") -> Page:
    url, deployment = served
    page: Page = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800}).new_page()
    sign_in(page, url, deployment.keys[owner])
    page.wait_for_url(f"{url}/agents/support")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_on_any_page(scheme: str, browser: Any, served: tuple[str, Deployment]) -> None:
    page = visit(browser, served, scheme)
    for path in (*PAGES, f"/approvals/{served[1].approval}", "/login"):
        page.goto(served[0] + path)
        if path == "/agents/support":
            page.wait_for_selector(".chart")
        page.wait_for_selector(".wait", state="detached")  # the parts are there
        found = Axe().run(page).response["violations"]
        serious = [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, (path, serious)


def test_a_page_is_read_and_a_step_reached_by_keyboard_alone(browser: Any, served: tuple[str, Deployment]) -> None:
    page = visit(browser, served, "light")
    page.wait_for_selector(".chart")
    page.keyboard.press("/")
    page.keyboard.type("tr_acme_4")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trajectories/acme/tr_acme_4")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.id") == "ev_acme_4"
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url("**/approvals")


def test_no_page_is_wider_than_1280_pixels_and_no_script_fails(browser: Any, served: tuple[str, Deployment]) -> None:
    page = visit(browser, served, "light")
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    for path in PAGES:
        page.goto(served[0] + path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
    assert errors == []


def test_light_or_dark_is_remembered(browser: Any, served: tuple[str, Deployment]) -> None:
    page = visit(browser, served, "light")
    page.click("#theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_button_approves(browser: Any, served: tuple[str, Deployment]) -> None:
    page = visit(browser, served, "light")
    page.click(".ask a")
    page.fill("#reason", "reads well")
    page.click("button.yes")
    page.wait_for_selector("[role=status]")
    decided = approvals.get(control.connect(served[1].config.control_db), served[1].approval)
    assert (decided.status, decided.decided_by, decided.grants[0].authenticated) == ("approved", "dana", True)
