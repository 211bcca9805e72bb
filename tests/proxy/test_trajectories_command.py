"""`evoplane trajectories`: what was captured, and clean only what was looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from atdp.records import (
    Action,
    Message,
    MessagePrefix,
    Metadata,
    Observation,
    Outcome,
    Part,
    Scale,
    Source,
    Usage,
)
from evoplane.cli.main import app
from evoplane.settings import settings
from registry.tenants import RegistryError
from services.proxy.store import EventStore
from tests.proxy.drafting import CONTEXT, event, header, signal


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOPLANE_PATHS__VAR", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("id", ["t1", "e1"])
async def test_verifying_another_tenants_trajectory_fails(id: str) -> None:
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), event("e1", "t1")])
    await opened.append("b", [CONTEXT, header("t2"), event("e2", "t2")])
    await opened.close()
    right = CliRunner().invoke(app, ["trajectories", "verify", id, "--tenant", "a"])
    wrong = CliRunner().invoke(app, ["trajectories", "verify", id, "--tenant", "b"])
    assert right.exit_code == 0
    assert right.output.startswith("1 trajectories")
    assert wrong.exit_code != 0
    assert isinstance(wrong.exception, RegistryError)


@pytest.mark.parametrize("command", [["list"], ["show", "t1"], ["show", "e1", "--raw"], ["verify"], ["export"]])
async def test_what_was_captured_can_be_listed_shown_verified_and_exported(command: list[str]) -> None:
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), event("e1", "t1")])
    await opened.close()
    result = CliRunner().invoke(app, ["trajectories", *command])
    assert result.exit_code == 0, result.exception
    assert "t1" in result.output or "1 trajectories" in result.output


async def test_a_list_says_where_there_are_more_and_stays_a_list(tmp_path: Path) -> None:
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), header("t2")])
    await opened.append("b", [CONTEXT, header("t3")])
    await opened.close()
    for flags in ([], ["--json"]):
        some = CliRunner().invoke(app, ["trajectories", "list", "--limit", "1", *flags])
        assert some.stderr == "1 of a shown, there are more: --limit 10\n"
        assert CliRunner().invoke(app, ["trajectories", "list", "--limit", "2", *flags]).stderr == ""
    assert {row["trajectory_id"] for row in json.loads(some.stdout)} == {"t2", "t3"}


async def test_a_trajectory_is_shown_as_a_person_reads_it() -> None:
    def said(role: str, *parts: Part) -> Message:
        return Message(role=role, parts=list(parts))

    wanted = Part(type="tool_call", id="c1", name="track", arguments={"order_id": "A1"})
    asked = event(
        "e1", text="Where is [bold]A1[/bold]?\x1b[2J", kind="llm_call", a=Action(messages=[said("assistant", wanted)]),
        m=Metadata(usage=Usage(input_tokens=512, output_tokens=20), tags={"agent_version": "3", "role": "canary"}),
        duration_ms=1234.0,
    )  # fmt: skip
    done = replace(
        event("e2", kind="tool_call"),
        o=Observation(),
        a=Action(name="track", call_id="c1", arguments={"order_id": "A1"}),
        y=Outcome(status="ok", result={"state": "on its way"}),
        duration_ms=56.0,
    )
    answer = said("assistant", Part(type="text", content="It is on its way."))
    told = replace(
        event("e3", kind="llm_call", a=Action(messages=[answer])),
        o=Observation(messages=MessagePrefix(prefix="e1", append=[{"event": "e2"}])),
    )
    judged = signal("an1", "event", "e3", "resolved")
    said_well = replace(
        judged.annotation, explanation="that was it", scale=Scale(min=0, max=1), source=Source(kind="human", id="dana")
    )
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), asked, done, told, replace(judged, annotation=said_well)])
    await opened.close()

    shown = CliRunner().invoke(app, ["trajectories", "show", "t1"]).output
    lines = [line.strip() for line in shown.splitlines()]
    assert any("llm_call" in x and "took 1.23 s" in x and "512 in, 20 out" in x and "version 3 (canary)" in x
               for x in lines), shown  # fmt: skip
    assert "user: Where is [bold]A1[/bold]?\\x1b[2J" in lines, "as it was said, and no command to the terminal"
    assert lines.count('call: track({"order_id": "A1"})') == 2, "what was wanted, and what was done"
    assert any("tool_call track" in x and "took 56 ms" in x for x in lines)
    assert 'result: {"state": "on its way"}' in lines
    assert "assistant: It is on its way." in lines
    assert any("reward resolved = 1" in x and "about step 3, by human dana" in x for x in lines)
    assert "that was it" in lines
    assert shown.count("Where is") == 1, "a later call does not repeat the history"
    assert "None" not in shown and "'" not in shown, "no Python reprs"
    whole = json.loads(CliRunner().invoke(app, ["trajectories", "show", "t1", "--json"]).output)
    assert len(whole[3]["o"]["messages"]) == 3, "the records themselves have it"


async def test_what_a_person_decided_and_how_the_work_ended_are_shown() -> None:
    asked = replace(
        event("e1", kind="approval"), a=Action(name="refund", arguments={"amount": 20}, decision="granted by dana")
    )
    ended = replace(event("e2", kind="outcome"), y=Outcome(status="ok", reason="solved"))
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), asked, ended])
    await opened.close()
    lines = [line.strip() for line in CliRunner().invoke(app, ["trajectories", "show", "t1"]).output.splitlines()]
    assert 'call: refund({"amount": 20})' in lines and "decision: granted by dana" in lines
    assert "reason: solved" in lines


async def test_what_an_agent_named_cannot_look_like_another_step() -> None:
    forged = "track\n   9  outcome  user  ok \u202eko"
    done = replace(event("e1", kind="tool_call"), o=Observation(), a=Action(name=forged, arguments={}))
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), done])
    await opened.close()
    shown = CliRunner().invoke(app, ["trajectories", "show", "t1"]).output
    assert not any(line.startswith("   9  outcome") for line in shown.splitlines()), shown
    assert "track\\x0a   9  outcome" in shown
    assert "\u202e" not in shown, "no terminal turns the writing round"
