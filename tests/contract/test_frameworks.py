"""Frameworks that know only a base URL and a key get through the gateway what they get without it, and all of it
is stored."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

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
    redaction: Literal["standard", "off"] = "standard"
    """Off for a client that sends what is redacted, so that what is stored can be compared."""
    made_up: str = r"(?!)"
    """What the client makes up anew in each run, as a regular expression."""

    def same(self, text: str | bytes) -> str:
        """Without what is made up."""
        return re.sub(self.made_up, "…", text if isinstance(text, str) else text.decode())


_SECOND_TASK = "\nCurrent Task: And in Oslo?\n\nThis is the"
"""CrewAI begins each task afresh: what a conversation begins with when it isn't a scenario's question."""

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

CLIENTS = {
    "openai": Client("openai_sdk.py"),
    "anthropic": Client("anthropic_sdk.py"),
    "openai-agents": Client("openai_agents.py", trajectories={"agents_subagent": 1, "Helper": 1}),
    "langgraph": Client("langgraph_agent.py"),
    "pydantic-ai": Client("pydantic_ai_agent.py"),
    "crewai": Client("crewai_crew.py", ".venv-clients-crewai", {_SECOND_TASK: 1}),
    "claude-code": Client(
        "claude_code.py",
        trajectories={"Helper": 1},
        redaction="off",  # its instructions hold a mail address
        made_up=_UUID + r"|\b[0-9a-f]{64}\b|agentId: \w+|to: '\w+'|duration_ms: \d+|cch=\w+",
    ),
    "smolagents": Client("smolagents_agent.py", trajectories={"smolagents_planned": 2}),
}


@pytest.fixture(scope="module", params=CLIENTS)
def ran(
    request: pytest.FixtureRequest, model: ScriptedModel, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """The client's run against the model itself, then through the gateway."""
    client = CLIENTS[request.param]
    interpreter, folder = python(client.environment), tmp_path_factory.mktemp(request.param)
    key = served.key(request.param, client.redaction)
    got = []
    for name, url in (("direct", model.url), ("through", served.url)):
        model.reset()
        result = run_client(interpreter, client.script, url, key, folder / "client")
        (folder / "client").rename(folder / name)
        got.append((result, model.exchanges, model.beside))
    (direct, asked_direct, beside_direct), (through, asked_through, beside_through) = got
    return Ran(request.param, direct, through, asked_direct, asked_through, beside_direct, beside_through)


def test_the_client_gets_what_it_gets_without_the_gateway(ran: Ran) -> None:
    same = CLIENTS[ran.tenant].same
    for name in ran.direct:
        assert json.loads(same(json.dumps(ran.through[name]))) == json.loads(same(json.dumps(ran.direct[name]))), name
    failed = {name for name, got in ran.direct.items() if isinstance(got, dict) and "raised" in got}
    assert failed == {name for name in ran.direct if name.endswith(("_400", "_cut"))}, (
        "else the client's run itself failed"
    )


def test_the_model_is_asked_the_same_bytes(ran: Ran) -> None:
    same = CLIENTS[ran.tenant].same
    assert [same(each.raw) for each in ran.asked_through] == [same(each.raw) for each in ran.asked_direct]
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


def test_a_retry_is_the_same_call_again(ran: Ran, served: Served) -> None:
    calls = Stored.read(served.reader, ran.tenant).calls()
    retried = [call for call in calls if any(cause["rel"] == "retry_of" for cause in call.get("causes", ()))]
    limited = [call for call in calls if call.get("ext", {}).get("http_status") == 429]
    for failed in limited:
        (again,) = [call for call in retried if {"id": failed["id"], "rel": "retry_of"} in call["causes"]]
        assert again["trajectory_id"] == failed["trajectory_id"]
        assert again["y"]["status"] == "ok"
        assert again["y"]["retries"] == 1
    assert len(limited) == sum(name.endswith("_429") for name in ran.direct)


def test_titles_are_beside_the_conversation_and_sub_agents_under_it(ran: Ran, served: Served) -> None:
    stored = Stored.read(served.reader, ran.tenant)
    lines = {(stored.conversation(call), call["m"]["tags"]["line"]) for call in stored.calls()}
    beside = {(name, line) for name, line in lines if line != "main"}
    assert beside == ({("claude_title", "side"), ("Helper", "subagent")} if ran.tenant == "claude-code" else set())
    headers = [records[0] for records in stored.trajectories.values()]
    parents = {call["id"]: stored.conversation(call) for call in stored.calls()}
    under = [parents[header["parent"]["event_id"]] for header in headers if "parent" in header]
    assert under == (["claude_subagent"] if ran.tenant == "claude-code" else [])
