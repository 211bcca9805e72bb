"""Which event starts which flow. Written to the server at start-up; writing again changes nothing.

Numbers and objects must be wrapped as JSON around the template, or the server hands a string to the
flow and refuses the run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from flows import environment  # noqa: F401  (before prefect)

from prefect.automations import Automation  # isort: skip
from prefect.client.orchestration import SyncPrefectClient  # isort: skip
from prefect.client.schemas.objects import StateType  # isort: skip
from prefect.events.actions import ChangeFlowRunState, RunDeployment  # isort: skip
from prefect.events.schemas.automations import EventTrigger, Posture  # isort: skip
from prefect.events.schemas.events import ResourceSpecification  # isort: skip

_SILENCE_S = 180
"""Several missed heartbeats: the process is gone, not merely slow."""


def _text(field: str, default: str) -> str:
    return "{{ event.payload." + field + " | default('" + default + "') }}"


def _value(field: str, default: str) -> dict[str, Any]:
    template = "{{ event.payload." + field + " | default(" + default + ") | tojson }}"
    return {"__prefect_kind": "json", "value": {"__prefect_kind": "jinja", "template": template}}


_AGENT = "{{ event.payload.agent }}"
RULES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "monitor on request": ("evoplane.monitor.requested", "monitor/on-request", {"agent": _AGENT}),
    "evolve a degraded agent": (
        "evoplane.agent.degraded",
        "evolve/evolve",
        {
            "agent": _AGENT,
            "reason": _text("reason", "degraded"),
            "evidence": _value("evidence", "{}"),
            "alert": _text("alert", ""),
        },
    ),
    "deliver an accepted candidate": (
        "evoplane.candidate.accepted",
        "deliver/deliver",
        {"agent": _AGENT, "version": "{{ event.payload.version }}", "skip_shadow": _value("skip_shadow", "false")},
    ),
    "roll back on request": (
        "evoplane.rollback.requested",
        "rollback/rollback",
        {
            "agent": _AGENT,
            "to": _text("to", "previous"),
            "why": _text("why", "asked by an operator"),
            "mirror": _value("mirror", "false"),
        },
    ),
}
"""Automation -> (event, deployment, parameters)."""


def install(client: SyncPrefectClient) -> list[str]:
    """Create or renew every automation; returns their names."""
    for name, (event, deployment, parameters) in RULES.items():
        id = client.read_deployment_by_name(deployment).id
        _renew(name, _on_event(name, event, id, parameters))
    _renew("crash silent runs", _crash_silent_runs())
    return [*RULES, "crash silent runs"]


def _on_event(name: str, event: str, deployment_id: UUID, parameters: dict[str, Any]) -> Automation:
    return Automation(
        name=name,
        trigger=EventTrigger(
            expect={event},
            match=ResourceSpecification({"prefect.resource.id": ["evoplane.agent.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[RunDeployment(source="selected", deployment_id=deployment_id, parameters=parameters)],
    )


def _crash_silent_runs() -> Automation:
    """A run whose process and runner both died shows only by its missing heartbeats."""
    alive = {"prefect.flow-run.heartbeat"}
    ended = {f"prefect.flow-run.{s}" for s in ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")}
    return Automation(
        name="crash silent runs",
        trigger=EventTrigger(
            after=alive,
            expect=alive | ended,
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_SILENCE_S),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {_SILENCE_S} s")],
    )


def _renew(name: str, automation: Automation) -> None:
    try:
        old = cast(Automation, Automation.read(name=name))
    except ValueError:
        automation.create()
        return
    automation.id = old.id
    automation.update()
