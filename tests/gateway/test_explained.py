"""Why an agent said something, whom a version answered, and going back to before it: from real answers."""

from __future__ import annotations

import msgspec
import pytest

from registry import approvals, candidates, history, pointers
from registry.impact import impact
from registry.lineage import explain
from registry.tenants import RegistryError
from tests.gateway.conftest import Running, user


async def said(running: Running, key: str = "northwind", session: str = "s") -> str:
    response = await running.chat([user("hi")], key=key, headers={"x-evoplane-session-id": session})
    return response.headers["x-evoplane-event-id"]


async def promoted_and_rolled_back(running: Running) -> dict[str, str]:
    """Version 2 approved by two people, served, and rolled back; an answer of each time."""
    connection = running.connection
    known = pointers.versions(connection, "support")["2"]
    told = msgspec.structs.replace(known, parent="1", intervention="memory", description="the new warranty")
    pointers.put_version(connection, told)
    events = {"before": await said(running, session="s1")}
    for state in ("accepted", "canary", "approval"):
        candidates.move(connection, "support", "2", state)  # type: ignore[arg-type]
    asked = approvals.request(connection, "support", "2", {}, 60, "run", 2)
    approvals.decide(connection, asked.id, "approved", "dana", "cli", "clear")
    approvals.decide(connection, asked.id, "approved", "eli", "console")
    candidates.move(connection, "support", "2", "promoted")
    pointers.set_champion(connection, "support", "2", f"approval {asked.id}", "dana")
    await running.wait_for_control()
    events["bad"] = await said(running, session="s2")
    events["bad of another tenant"] = await said(running, "lumen", "s3")
    pointers.rollback(connection, "support", "previous", "wrong refunds", "eli")
    await running.wait_for_control()
    events["after"] = await said(running, session="s2")
    return events


@pytest.fixture
def approvers(running: Running) -> None:
    from registry import tenants

    agent = tenants.get_agent(running.connection, "support")
    tenants.create_agent(running.connection, "support", agent.model, agent.environment, ("dana", "eli"))


async def test_an_answer_of_a_rolled_back_version_is_explained_to_its_approvers(
    running: Running, approvers: None
) -> None:
    events = await promoted_and_rolled_back(running)
    found = explain(running.connection, running.reader, events["bad"])
    assert (found.answer.agent_version, found.state) == ("2", "rolled back")
    text = "\n".join(found.because)
    for part in ("memory: the new warranty (from version 1)", "approved by dana (name as typed, cli", "approved by eli",
                 "rollback by eli: wrong refunds"):  # fmt: skip
        assert part in text
    assert [step["version"] for step in found.chain] == ["2", "1"]
    assert explain(running.connection, running.reader, events["after"]).state == "champion"


async def test_every_event_is_explained_by_the_call_it_belongs_to(running: Running) -> None:
    response = await running.chat([user("hi")])
    call = response.headers["x-evoplane-event-id"]
    for record in running.chain(response):
        if record["record"] == "event":
            assert explain(running.connection, running.reader, record["id"]).answer.said_by == call
    with pytest.raises(RegistryError, match="no event 'ev_0'"):
        explain(running.connection, running.reader, "ev_0")
    with pytest.raises(RegistryError, match="belongs to agent 'support'"):
        explain(running.connection, running.reader, call, "other")


async def test_before_an_event_is_the_champion_before_the_version_that_said_it(
    running: Running, approvers: None
) -> None:
    events = await promoted_and_rolled_back(running)
    bad = explain(running.connection, running.reader, events["bad"]).answer
    assert history.before(running.connection, "support", bad.agent_version, bad.time) == "1"
    first = explain(running.connection, running.reader, events["before"]).answer
    with pytest.raises(RegistryError, match="no version of support served before 1"):
        history.before(running.connection, "support", first.agent_version, first.time)


async def test_impact_lists_who_was_served_in_the_bad_window_and_who_corrected_it(
    running: Running, approvers: None
) -> None:
    events = await promoted_and_rolled_back(running)
    target = {"event_id": events["bad"]}
    sent = await running.feedback(
        {"name": "user_correction", "value": -1, "explanation": "no", "source": {"kind": "end_user"}, **target}
    )
    assert sent.status in (200, 202), await sent.text()
    found = impact(running.connection, running.reader, "support")
    assert (found.version, found.answers, found.corrected) == ("2", 2, 1)
    assert {(s.tenant, s.session_id): bool(s.corrected) for s in found.sessions} == {
        ("northwind", "s2"): True,
        ("lumen", "s3"): False,
    }
    assert events["after"] not in {e for s in found.sessions for e in s.events}
    assert [e.role for e in found.exposures] == ["champion"]
    later = impact(running.connection, running.reader, "support", "2", since=found.sessions[-1].first)
    assert [s.session_id for s in later.sessions] == ["s3"]


async def test_impact_of_a_canary_lists_its_sessions_only(running: Running) -> None:
    running.route(pointers.start_canary, "2", 0.5)
    await running.wait_for_control()
    for n in range(12):
        await said(running, session=f"s{n}")
    running.route(pointers.clear_canary, "harm", end="aborted")
    found = impact(running.connection, running.reader, "support")
    assert found.version == "2"
    assert 0 < len(found.sessions) < 12 and {s.roles for s in found.sessions} == {("canary",)}
    assert [e.role for e in found.exposures] == ["canary"]


async def test_without_a_rollback_the_version_must_be_named(running: Running) -> None:
    with pytest.raises(RegistryError, match="--version"):
        impact(running.connection, running.reader, "support")
