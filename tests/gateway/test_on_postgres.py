"""The whole gateway on PostgreSQL: what a client sees and what is stored is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr

from evoplane.settings import Store
from services.proxy.store import open_reader
from tests.gateway.conftest import MODEL, prepared, serve, user
from tests.gateway.upstream import ScriptedUpstream
from tests.proxy.backends import Postgres
from tests.proxy.conftest import postgres_admin
from tests.proxy.postgres_server import database

__all__ = ["postgres_admin"]


@pytest.fixture
def postgres(postgres_admin: str, tmp_path: Path) -> Iterator[Postgres]:
    with database(postgres_admin, tmp_path) as opened:
        yield opened


async def test_a_conversation_goes_on_after_a_restart_and_the_command_verifies_it(
    tmp_path: Path, upstream: ScriptedUpstream, postgres: Postgres
) -> None:
    plain, connection, secrets = prepared(tmp_path, upstream.port)
    connection.close()
    settings = plain.model_copy(
        update={"store": Store(engine="postgres", dsn=SecretStr(postgres.dsn), writer="process")}
    )
    messages = [user("hi " + "long " * 100_000)]
    headers = {"authorization": f"Bearer {secrets['northwind']}"}
    for _ in range(2):
        url, server, task = await serve(settings)
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{url}/v1/chat/completions", json={"model": MODEL, "messages": messages}) as response,
        ):
            assert response.status == 200
            messages += [(await response.json())["choices"][0]["message"], user("more")]
        server.should_exit = True
        await task
    reader = open_reader(settings)
    (row,) = reader.trajectories("northwind")
    kinds = [record["kind"] for record in reader.records("northwind", row.trajectory_id)[1:]]
    assert kinds == ["user_message", "llm_call", "user_message", "llm_call"]
    assert reader.tenants() == ["northwind"]
    reader.close()
    assert list((tmp_path / "store" / "blobs" / "northwind").rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", "from evoplane.cli.main import main; main()", "trajectories", "verify", "--json"],
        env={
            **os.environ,
            "EVOPLANE_CONFIG": os.devnull,
            "EVOPLANE_PATHS__VAR": str(tmp_path),
            "EVOPLANE_STORE__ENGINE": "postgres",
            "EVOPLANE_STORE__DSN": postgres.dsn,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
