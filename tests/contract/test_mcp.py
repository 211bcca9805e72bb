"""The official MCP client gets through the gateway what it gets without it, and each call is stored."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.proxy.store import StoreReader
from tests.contract.audit import Stored
from tests.contract.conftest import CLIENTS, Served, python, run_client
from tests.contract.model import ScriptedModel

pytestmark = pytest.mark.stack

_TENANT = "mcp"


@pytest.fixture(scope="module")
def server(mcp_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tool server's own address."""
    log = (tmp_path_factory.mktemp("mcp") / "server.log").open("w")
    command = [str(python(".venv-clients")), str(CLIENTS / "mcp_server.py"), str(mcp_port)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{mcp_port}/mcp"
    for _ in range(200):
        assert process.poll() is None, Path(log.name).read_text()
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.1)
    yield url
    process.terminate()
    process.wait(10)
    log.close()


@pytest.fixture(scope="module")
def got(server: str, model: ScriptedModel, served: Served, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the client got without the gateway and with it."""
    interpreter, folder, key = python(".venv-clients"), tmp_path_factory.mktemp("mcp"), served.key(_TENANT)
    results = []
    for name, base, url in (("direct", model.url, server), ("through", served.url, f"{served.url}/mcp/desk")):
        model.reset()
        results.append(run_client(interpreter, "mcp_client.py", base, key, folder / name, MCP_URL=url))
    return results


@pytest.mark.parametrize("scenario", ["mcp_modern", "mcp_legacy", "mcp_agent"])
def test_the_official_client_gets_what_it_gets_without_the_gateway(got: list[Any], scenario: str) -> None:
    direct, through = got
    assert through[scenario] == direct[scenario]
    assert "raised" not in direct[scenario]


def test_each_call_is_an_event(got: list[Any], served: Served) -> None:
    events = [event for event in _by_conversation(served.reader)[False] if event["kind"] in ("tool_call", "retrieval")]
    ends = [(event["a"]["name"], event["y"]["status"]) for event in events]
    once = [
        ("get_weather", "ok"), ("get_time", "ok"), ("get_weather", "error"), ("nothing", "error"), ("slow", "ok"),
        ("fail", "error"), ("resources/read", "ok"), ("prompts/get", "ok"),
    ]  # fmt: skip
    assert ends == once * 2
    assert events[0]["a"]["arguments"] == {"city": "Paris"}
    assert events[0]["replay"]["effect"] == "read"


def test_a_call_that_a_model_made_is_an_event_of_its_conversation_once(got: list[Any], served: Served) -> None:
    events = _by_conversation(served.reader)[True]
    assert [event["kind"] for event in events] == ["user_message", "llm_call", *["tool_call"] * 3, "llm_call"]
    asked = [part for part in events[1]["a"]["messages"][0]["parts"] if part["type"] == "tool_call"]
    called = [event for event in events if event["kind"] == "tool_call"]
    for call, event in zip(asked, called, strict=True):
        assert (event["a"]["name"], event["a"]["arguments"]) == (call["name"], call["arguments"])
        assert event["a"]["call_id"] == call["id"]
        assert event["parent_id"] == events[1]["id"]
        assert event["replay"]["effect"] == "read"


def _by_conversation(reader: StoreReader) -> dict[bool, list[dict[str, Any]]]:
    """The tenant's events in order: those of the conversation with the model, and the others."""
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for records in Stored.read(reader, _TENANT).trajectories.values():
        events = [record for record in records if record["record"] == "event"]
        found[any(event["kind"] == "llm_call" for event in events)] += events
    return found
