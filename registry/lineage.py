"""Lineage: from what an agent said back to why that version existed, and who let it through.

`explain` is the one answer to "why did the agent say this?": the command line and the console show what it returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

from registry import approvals, audit, candidates, decisions, history, pointers
from registry.approvals import Approval
from registry.impact import Log
from registry.tenants import RegistryError

_STAGES = ("shadow", "canary", "watch")
_NAMES = frozenset({"decision", "snapshot", "training_set", "approval", "approver"})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about."""

    event_id: str
    tenant: str
    trajectory_id: str
    kind: str
    time: str
    context: str | None
    agent: str
    agent_version: str
    role: str
    said_by: str
    """The model call that the event belongs to; itself for a model call."""
    overlays: list[str] = []
    """What the version put in front of the model for this request."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    answer: Answer
    chain: list[dict[str, Any]]
    """The version and its ancestors, newest first; see `lineage`."""
    state: str
    """What became of the version: `champion`, `previous`, its state as a candidate, or `unregistered`."""
    because: list[str]
    """The same as sentences, from the event to the approver."""


def explain(
    connection: sqlite3.Connection,
    log: Log,
    event_id: str,
    agent: str | None = None,
    *,
    tenant: str | None = None,
    whole: bool = True,
) -> Explanation:
    """Why did the agent say this? For any event, whatever became of the version that was behind it.

    Ids are unique in a tenant's log, and may be another's as well: `tenant` says whose is meant. `whole` is
    `lineage`'s. Raises `RegistryError` for an event that does not exist, or is not `agent`'s.
    """
    answer = _answer(log, event_id, agent, tenant)
    if answer.agent_version not in pointers.versions(connection, answer.agent):
        said = f"{_what(answer)}, by version {answer.agent_version}, which was never registered: the model as it is"
        return Explanation(answer=answer, chain=[], state="unregistered", because=[said])
    chain = lineage(connection, answer.agent, answer.agent_version, whole=whole)
    state = _state(connection, answer.agent, answer.agent_version)
    because = [
        f"{_what(answer)}, as {answer.role}, by version {answer.agent_version}",
        *(f"before the model: {text}" for text in answer.overlays),
        *(line for step in chain[:1] for line in _sentences(step)),
        f"version {answer.agent_version} is {state} now",
    ]
    return Explanation(answer=answer, chain=chain, state=state, because=because)


def lineage(connection: sqlite3.Connection, agent: str, version: str, *, whole: bool = True) -> list[dict[str, Any]]:
    """The version and its ancestors, newest first; each with intervention, evidence, stages, approval and service.

    Not `whole`, it is without the texts and figures that were written about all tenants together: what happened, when
    and by whom remains. Raises `RegistryError` for a version the agent never had.
    """
    known = pointers.versions(connection, agent)
    by_id = {a.id: a for a in approvals.list_approvals(connection, agent)}
    asked = {a.version: a for a in by_id.values()}
    decided = {d["id"]: d for d in decisions.list_decisions(connection, agent)}
    served = history.champions(connection, agent)
    stages = _stages(connection, agent)
    chain: list[dict[str, Any]] = []
    label: str | None = version
    while label is not None:
        if label not in known:
            raise RegistryError(f"{agent} has no version {label!r}")
        entry = known[label]
        approval = by_id.get(entry.lineage.get("approval", "")) or asked.get(label)
        decision = decided.get(entry.lineage.get("decision", ""))
        periods = [p for p in served if p.version == label]
        chain.append(
            {
                "version": label,
                "digest": entry.digest,
                "intervention": entry.intervention,
                "description": entry.description,
                "parent": entry.parent,
                "created_at": entry.created_at,
                "evidence": entry.lineage,
                "decision": decision and {k: decision[k] for k in ("id", "at", "reason", "snapshot") if k in decision},
                "stages": stages.get(label, []),
                "approval": approval and _approval(approval),
                "served_from": [p.since for p in periods],
                "served": [msgspec.to_builtins(p) for p in periods],
            }
        )
        label = entry.parent
    return chain if whole else [_narrow(step) for step in chain]


def without_figures(lineage: Mapping[str, str]) -> dict[str, str]:
    """Of what a version's lineage says, the ids and people: the rest was counted over all tenants, or quotes them."""
    return {key: value for key, value in lineage.items() if key in _NAMES}


def _narrow(step: dict[str, Any]) -> dict[str, Any]:
    decision, approval = step["decision"], step["approval"]
    return {
        **step,
        "description": "",
        "evidence": without_figures(step["evidence"]),
        "decision": decision and {**decision, "reason": ""},
        "stages": [{**stage, "reason": ""} for stage in step["stages"]],
        "served": [{**period, "why": "", "ended_by": ""} for period in step["served"]],
        "approval": approval
        and {**approval, "reason": "", "grants": [{**grant, "reason": ""} for grant in approval["grants"]]},
    }


def _answer(log: Log, event_id: str, agent: str | None, tenant: str | None) -> Answer:
    found = log.find_event(event_id, tenant)
    if found is None:
        raise RegistryError(f"no event {event_id!r}")
    tenant, trajectory_id = found
    said: dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    for record in log.records(tenant, trajectory_id):
        if record.get("kind") == "llm_call" and (event is None or said is None):
            said = record
        if record.get("id") == event_id:
            event = record
        if event is not None and said is not None:
            break
    if event is None or said is None:
        raise RegistryError(f"no model call belongs to {event_id!r}: nobody said anything there")
    tags = (said.get("m") or {}).get("tags") or {}
    owner = str(tags.get("agent", ""))
    if agent is not None and owner != agent:
        raise RegistryError(f"event {event_id} belongs to agent {owner!r}, not {agent!r}")
    overlays = [
        f"{o.get('kind') or 'overlay'} {o.get('id') or o.get('memory_id') or ''}".strip()
        for o in (said.get("ext") or {}).get("overlays") or []
    ]
    return Answer(
        event_id=event_id,
        tenant=tenant,
        trajectory_id=trajectory_id,
        kind=str(event.get("kind") or event["record"]),
        time=event["time"],
        context=said.get("ctx"),
        agent=owner,
        agent_version=str(tags.get("agent_version", "")),
        role=str(tags.get("role", "champion")),
        said_by=said["id"],
        overlays=overlays,
    )


def _state(connection: sqlite3.Connection, agent: str, version: str) -> str:
    route = pointers.read_route(connection, agent)
    for name in ("champion", "canary", "shadow"):
        if getattr(route, name) == version:
            return name
    known = candidates.get(connection, agent, version)
    if version == route.withdrawn or (known is not None and known.state == "rolled_back"):
        return "rolled back"
    if version == route.previous:
        return "previous"
    return known.state if known is not None else "not served"


def _stages(connection: sqlite3.Connection, agent: str) -> dict[str, list[dict[str, Any]]]:
    """How shadow, canary and watch ended, by version."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in audit.entries(connection, agent):
        stage, _, end = entry.action.partition(".")
        if stage in _STAGES and "reason" in entry.detail:
            ended = {"stage": stage, "end": end, "at": entry.at, "reason": entry.detail["reason"]}
            found.setdefault(str(entry.detail.get("version")), []).append(ended)
    return found


def _approval(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "status": approval.status,
        "by": approval.decided_by,
        "at": approval.decided_at,
        "channel": approval.channel,
        "reason": approval.reason,
        "grants": [msgspec.to_builtins(grant) for grant in approval.grants],
    }


def _what(answer: Answer) -> str:
    of = "" if answer.said_by == answer.event_id else f" (of the model call {answer.said_by})"
    return f"{answer.kind} {answer.event_id}{of} at {answer.time}, tenant {answer.tenant}"


def _sentences(step: dict[str, Any]) -> list[str]:
    lines = [f"version {step['version']} is {step['intervention']}" + _because(step["description"])]
    if step["parent"]:
        lines[0] += f" (from version {step['parent']})"
    if step["decision"]:
        decision = step["decision"]
        chosen = f"chosen by decision {decision['id']} at {decision['at']}"
        lines.append(chosen + _because(decision.get("reason", "")))
    if step["evidence"].get("snapshot"):
        gate = step["evidence"].get("data_gate", "not recorded")
        lines.append(f"on snapshot {step['evidence']['snapshot']}; data gate {gate}")
    lines += [f"{s['stage']} {s['end']} at {s['at']}" + _because(s["reason"]) for s in step["stages"]]
    approval = step["approval"]
    if approval:
        lines.append(f"approval {approval['id']} is {approval['status']}")
        for grant in approval["grants"]:
            proof = f"proven by {grant['key_id']}" if grant["authenticated"] else "name as typed"
            said = f"{grant['decision']} by {grant['by']} ({proof}, {grant['channel']}, {grant['at']})"
            lines.append(said + _because(grant["reason"]))
    for period in step["served"]:
        by = f" ({period['ended_by']})" if period["ended_by"] else ""
        ended = f" until {period['until']}{by}" if period["until"] else ", and still does"
        lines.append(f"served everybody from {period['since']} ({period['action']} by {period['actor']}){ended}")
    return lines


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
