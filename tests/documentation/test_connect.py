"""What the connect pages tell a newcomer to run works as it stands there, and its trajectory is recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.conftest import _QUIET, Served, configuration, free_port, python, start
from tests.contract.model import ScriptedModel
from tests.documentation.blocks import DOCS, block, blocks

PAGES = {
    "openai": (".venv-clients", "gpt-fake"),
    "anthropic": (".venv-clients", "claude-fake"),
    "langgraph": (".venv-clients", "gpt-fake"),
    "openai-agents": (".venv-clients", "gpt-fake"),
    "crewai": (".venv-clients-crewai", "gpt-fake"),
    "claude-code": (".venv-clients", "claude-fake"),
}
"""Page: the environment its framework is in, and a model the scripted provider has."""

_SERVER = Path(__file__).parents[1] / "contract" / "clients" / "mcp_server.py"


@pytest.fixture(scope="module")
def mcp_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, mcp_port: int) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("connect")
    with ScriptedModel() as model:
        file = folder / "evoplane.toml"
        file.write_text(configuration(folder, model.url, mcp_port))
        yield from start(file, "gpt-fake")


def run(interpreter: Path, script: str, folder: Path, gateway: Served, key: str, **env: str) -> str:
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": gateway.url, "ANTHROPIC_API_KEY": key, **_QUIET, **env,
    }  # fmt: skip
    file = folder / "agent.py"
    file.write_text(script)
    done = subprocess.run(
        [str(interpreter), str(file)], env=environ, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.stack
@pytest.mark.parametrize("page", PAGES)
def test_the_page_s_agent_runs_as_written_and_is_recorded(page: str, gateway: Served, tmp_path: Path) -> None:
    environment, model = PAGES[page]
    key = gateway.key(page)
    said, *more = [
        run(python(environment), code, tmp_path, gateway, key, MODEL=model)
        for code in blocks(DOCS / "connect" / f"{page}.md", "python")
    ]
    assert all(text.strip() for text in (said, *more))
    rows = gateway.reader.trajectories(page)
    kinds = [r.get("kind") for row in rows for r in gateway.reader.records(page, row.trajectory_id)]
    assert "llm_call" in kinds
    if page != "claude-code":  # which has tools of its own
        assert "sunny" in said
        assert "tool_call" in kinds


@pytest.mark.stack
def test_the_mcp_page_s_client_runs_as_written_and_its_call_is_recorded(
    gateway: Served, mcp_port: int, tmp_path: Path
) -> None:
    interpreter, key = python(".venv-clients"), gateway.key("mcp")
    server = subprocess.Popen([str(interpreter), str(_SERVER), str(mcp_port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until and socket.socket().connect_ex(("127.0.0.1", mcp_port)):
            time.sleep(0.1)
        said = run(
            interpreter, block(DOCS / "connect" / "mcp.md", "python"), tmp_path, gateway, key,
            MCP_URL=f"{gateway.url}/mcp/desk",
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(10)
    assert "Paris" in said
    rows = gateway.reader.trajectories("mcp")
    kinds = [r.get("kind") for row in rows for r in gateway.reader.records("mcp", row.trajectory_id)]
    assert "tool_call" in kinds


def test_every_python_block_of_the_connect_pages_compiles_and_every_page_is_listed() -> None:
    listed = (DOCS / "connect" / "README.md").read_text()
    for page in (DOCS / "connect").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in listed
        for text in blocks(page, "python"):
            compile(text, str(page), "exec")


def test_the_hermes_page_s_configuration_names_the_gateway() -> None:
    told = yaml.safe_load(block(DOCS / "connect" / "hermes.md", "yaml"))
    assert told["model"]["provider"] == "custom"
    assert told["model"]["base_url"].endswith("/v1")
