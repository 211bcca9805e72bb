"""Talking to Prefect without importing it: emit events, look at runs, resume a waiting approval.

What the CLI and other light processes need of the orchestrator, over its REST interface. A busy Prefect
answers 503 to a perfectly valid call; those are repeated.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import httpx

from evoplane.settings import Settings
from registry.approvals import Approval
from registry.tenants import RegistryError

_ATTEMPTS = 8
_RETRY_PAUSE_S = 1.0
_SUSPENSION_WAIT_S = 60.0
"""How long a decided approval waits for its run to have suspended: the record is written just before."""
_SOON_S = 5.0
_FORM_ATTEMPTS = 3
"""Prefect stores a form just after it suspends the run; until then it refuses every answer."""

Decision = Literal["approve", "reject"]


def emit_event(config: Settings, event: str, agent: str, payload: Mapping[str, Any]) -> str:
    """Emit an event about an agent; automations on it start flows. Returns the event's id."""
    id = str(uuid.uuid4())
    body = {
        "id": id,
        "occurred": datetime.now(UTC).isoformat(),
        "event": event,
        "resource": {"prefect.resource.id": f"evoplane.agent.{agent}", "prefect.resource.name": agent},
        "related": [],
        "payload": dict(payload),
    }
    _call(config, "POST", "/events", [body])
    return id


def seconds_since(at: str) -> float:
    """Seconds since an RFC 3339 time of the control database."""
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()


def recent_runs(config: Settings, limit: int = 20) -> list[dict[str, Any]]:
    """The newest flow runs: id, name, flow, state_type, state_name, state_message."""
    rows = _call(config, "POST", "/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": limit})
    return [_row(row) for row in rows if row.get("state_type") != "SCHEDULED"]


def read_run(config: Settings, flow_run_id: str) -> dict[str, Any]:
    return _row(_call(config, "GET", f"/flow_runs/{flow_run_id}"))


def resume_approval(config: Settings, approval: Approval, wait_s: float = _SUSPENSION_WAIT_S) -> dict[str, Any]:
    """Tell the run that waits for this approval what was decided; without a decision yet it waits on (`WAITING`)."""
    if approval.status == "pending":
        return {"status": "WAITING", "state": None}
    assert approval.flow_run_id is not None and approval.decided_by is not None
    decision: Decision = "approve" if approval.status == "approved" else "reject"
    answer = {"decision": decision, "reviewer": approval.decided_by, "note": approval.reason or ""}
    return resume_run(config, approval.flow_run_id, answer, wait_s)


def resume_soon(config: Settings, approval: Approval) -> dict[str, Any]:
    """`resume_approval` for whoever has just decided: the record stands, whether or not Prefect answers.

    If it does not, the status is `LATER`: the flows tell the run when both are back. A run that is not suspended is
    not waited for long: it was told already, or the flows tell it when it is.
    """
    try:
        return resume_approval(config, approval, _SOON_S)
    except RegistryError as error:
        return {"status": "LATER", "state": None, "why": str(error)}


def resume_run(
    config: Settings, flow_run_id: str, run_input: Mapping[str, Any], wait_s: float = _SUSPENSION_WAIT_S
) -> dict[str, Any]:
    """Resume a suspended run with its form filled in; returns {"status", "state"}.

    A run that already went on is left alone (status "ABORT"). Raises `RegistryError` when Prefect refuses
    the form: it answers 200 with the status REJECT.
    """
    deadline = time.monotonic() + wait_s
    while True:
        row = read_run(config, flow_run_id)
        if row["state_type"] == "PAUSED":
            break
        if row["state_type"] not in ("RUNNING", "PENDING") or time.monotonic() > deadline:
            return {"status": "ABORT", "state": row["state_name"]}
        time.sleep(_RETRY_PAUSE_S / 2)
    for attempt in range(_ATTEMPTS):
        reply = _call(config, "POST", f"/flow_runs/{flow_run_id}/resume", {"run_input": dict(run_input)})
        if reply["status"] != "REJECT" or attempt >= _FORM_ATTEMPTS:
            break
        time.sleep(_RETRY_PAUSE_S)
    if reply["status"] == "REJECT":
        reason = (reply.get("details") or {}).get("reason", "no reason given")
        raise RegistryError(f"Prefect refused to resume run {flow_run_id}: {reason}")
    return {"status": reply["status"], "state": (reply.get("state") or {}).get("name")}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    state = row.get("state") or {}
    return {
        "id": row["id"],
        "name": row["name"],
        "flow_id": row["flow_id"],
        "deployment_id": row.get("deployment_id"),
        "state_type": row.get("state_type"),
        "state_name": row.get("state_name"),
        "state_message": state.get("message") or "",
    }


def _call(config: Settings, method: str, path: str, body: Any = None) -> Any:
    url = config.prefect_api_url + path
    for attempt in range(_ATTEMPTS):
        try:
            response = httpx.request(method, url, json=body, timeout=30)
        except httpx.TransportError as error:
            if attempt == _ATTEMPTS - 1:
                raise RegistryError(f"Prefect does not answer at {url}: is the stack up? ({error})") from error
        else:
            if response.status_code != 503:
                break
        time.sleep(_RETRY_PAUSE_S)
    if response.is_error:
        raise RegistryError(f"Prefect answered {response.status_code} to {method} {path}: {response.text[:300]}")
    return response.json() if response.content else None
