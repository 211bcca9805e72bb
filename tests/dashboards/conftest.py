from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from dashboards.console.app import create_app
from tests.dashboards.deployment import Deployment, made


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return made(tmp_path_factory.mktemp("console"))


@pytest.fixture
def console(deployment: Deployment) -> Iterator[TestClient]:
    with TestClient(create_app(deployment.config), follow_redirects=False) as client:
        yield client
