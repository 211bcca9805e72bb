"""Frameworks that know only a base URL and a key get through the gateway what they get without it, and all of it
is stored."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contract.audit import Stored, check
from tests.contract.conftest import Ran, Served, python, run_client
from tests.contract.model import ScriptedModel

pytestmark = pytest.mark.stack


@dataclass(frozen=True)
class Client:
    """A framework under test."""

    script: str
    environment: str = ".venv-clients"
    trajectories: dict[str, int] = field(default_factory=dict)
    """How many conversations a scenario has where it isn't one, and those that scenarios start beside their own."""


CLIENTS = {
    "openai": Client("openai_sdk.py"),
    "anthropic": Client("anthropic_sdk.py"),
    "openai-agents": Client("openai_agents.py", trajectories={"agents_subagent": 1, "Helper": 1}),
    "langgraph": Client("langgraph_agent.py"),
    "pydantic-ai": Client("pydantic_ai_agent.py"),
    "smolagents": Client("smolagents_agent.py", trajectories={"smolagents_planned": 2}),
}


@pytest.fixture(scope="module", params=CLIENTS)
def ran(
    request: pytest.FixtureRequest, model: ScriptedModel, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """The client's run against the model itself, then through the gateway."""
    client = CLIENTS[request.param]
    interpreter, folder = python(client.environment), tmp_path_factory.mktemp(request.param)
    key = served.key(request.param)
    got = []
    for name, url in (("direct", model.url), ("through", served.url)):
        model.reset()
        result = run_client(interpreter, client.script, url, key, folder / name)
        got.append((result, model.exchanges, model.beside))
    (direct, asked_direct, beside_direct), (through, asked_through, beside_through) = got
    return Ran(request.param, direct, through, asked_direct, asked_through, beside_direct, beside_through)


def test_the_client_gets_what_it_gets_without_the_gateway(ran: Ran) -> None:
    for name in ran.direct:
        assert ran.through[name] == ran.direct[name], name
    failed = {name for name, got in ran.direct.items() if isinstance(got, dict) and "raised" in got}
    assert failed == {name for name in ran.direct if name.endswith(("_400", "_cut"))}, "else the client's run itself failed"


def test_the_model_is_asked_the_same_bytes(ran: Ran) -> None:
    assert [each.raw for each in ran.asked_through] == [each.raw for each in ran.asked_direct]
    assert ran.beside_through == ran.beside_direct


def test_every_message_call_result_usage_and_id_is_stored(ran: Ran, served: Served) -> None:
    check(Stored.read(served.reader, ran.tenant), ran.asked_through)


def test_a_conversation_is_a_trajectory(ran: Ran, served: Served) -> None:
    stored = Stored.read(served.reader, ran.tenant)
    found: dict[str, set[str]] = defaultdict(set)
    for call in stored.calls():
        found[stored.conversation(call)].add(call["trajectory_id"])
    expected = {**dict.fromkeys(ran.direct, 1), **CLIENTS[ran.tenant].trajectories}
    assert {name: len(ids) for name, ids in found.items()} == expected
    assert len(stored.trajectories) == sum(expected.values())
