"""Every page of the console is there within a second when an agent has a hundred thousand trajectories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from dashboards.console.app import create_app
from tests.dashboards.deployment import crowd, made
from tests.dashboards.test_console import login

pytestmark = pytest.mark.stack

MANY = 100_000
PAGES = ("/", "/agents/support", "/agents/support/parts/quality", "/agents/support/parts/watching",
         "/agents/support/trajectories", "/agents/support/trajectories?tenant=acme&before=tr_acme_50000",
         "/trajectories/acme/tr_acme_50000", "/trajectories/acme/tr_acme_50000/parts/credit", "/find?q=ev_acme_50000",
         "/find?q=se_acme_50000", "/events/ev_acme_50000/why", "/agents/support/versions/2", "/approvals")  # fmt: skip


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    deployment = made(tmp_path_factory.mktemp("many"), conversations=1)
    asyncio.run(crowd(deployment.config, "acme", 1, MANY))
    with TestClient(create_app(deployment.config), follow_redirects=False) as client:
        login(client, deployment.keys["ravi"])
        yield client


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_there_within_a_second(page: str, console: TestClient) -> None:
    began = time.perf_counter()
    reply = console.get(page)
    took = time.perf_counter() - began
    assert reply.status_code in (200, 303)
    assert took < 1, f"{page} took {took:.2f} s"
