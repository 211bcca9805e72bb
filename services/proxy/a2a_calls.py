"""Agent2Agent's messages as hand-offs: what was asked of another agent, and what became of it.

Read are both spellings of the protocol's JSON-RPC binding (`message/send` of 0.3, `SendMessage` of 1.0). A
stream's updates add up to the task they speak of.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from atdp import clock
from atdp.records import Cause, Status
from services.proxy.reports import Reported

JsonRpc = dict[str, Any]

ASKING = frozenset({"message/send", "message/stream", "SendMessage", "SendStreamingMessage"})
LOOKING = frozenset({"tasks/get", "tasks/resubscribe", "GetTask", "SubscribeToTask", "TaskSubscription"})
_STATES: dict[str, Status] = {
    "completed": "ok",
    "failed": "error",
    "canceled": "cancelled",
    "cancelled": "cancelled",
    "rejected": "denied",
    "auth-required": "denied",
    "input-required": "ok",
}
"""Task states in which the other agent does nothing more by itself; all others go on."""
_CODES = {
    -32001: "task_not_found",
    -32002: "task_not_cancelable",
    -32004: "unsupported_operation",
    -32005: "content_type_not_supported",
    -32600: "invalid_request",
    -32601: "method_not_found",
    -32602: "invalid_arguments",
    -32603: "internal_error",
}


@dataclass
class Handoff:
    """A request to another agent on its way to its answer."""

    id: Any
    method: str
    params: dict[str, Any]
    began: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    report_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    task: dict[str, Any] = field(default_factory=dict)
    """What the updates add up to so far: a task, or a message."""
    error: dict[str, Any] | None = None

    @property
    def context_id(self) -> str | None:
        """The conversation between the two agents."""
        message = self.params.get("message")
        named = self.task.get("contextId") or (message.get("contextId") if isinstance(message, dict) else None)
        return named if isinstance(named, str) else None

    @property
    def task_id(self) -> str | None:
        named = self.task.get("id") or self.task.get("taskId") or self.params.get("id")
        return named if isinstance(named, str) else None

    @property
    def state(self) -> str | None:
        """The task's state in the words of 0.3; None for a plain message."""
        status = self.task.get("status")
        state = status.get("state") if isinstance(status, dict) else None
        return str(state).lower().removeprefix("task_state_").replace("_", "-") if state else None

    @property
    def settled(self) -> bool:
        """Will nothing more come of it by itself?"""
        if self.error is not None or (self.task and self.state is None):
            return True
        return self.state in _STATES


def handoff_of(message: JsonRpc) -> Handoff | None:
    """The hand-off that a request begins or looks after; None for anything else."""
    method, params = message.get("method"), message.get("params")
    if method not in ASKING | LOOKING or message.get("id") is None:
        return None
    return Handoff(message["id"], str(method), params if isinstance(params, dict) else {})


def update(handoff: Handoff, message: JsonRpc) -> None:
    """Take in one answer; a stream has several under one id."""
    if isinstance(message.get("error"), dict):
        handoff.error = message["error"]
        return
    result = message.get("result")
    if not isinstance(result, dict):
        return
    for name in ("task", "message", "statusUpdate", "artifactUpdate"):  # 1.0 wraps what 0.3 marks by `kind`
        if isinstance(result.get(name), dict):
            kind = {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}.get(name, name)
            result = {**result[name], "kind": kind}
            break
    match result.get("kind"):
        case "status-update":
            handoff.task |= {
                "id": result.get("taskId"),
                "contextId": result.get("contextId"),
                "status": result.get("status"),
            }
        case "artifact-update":
            handoff.task |= {"id": result.get("taskId"), "contextId": result.get("contextId")}
            _artifact(handoff.task.setdefault("artifacts", []), result)
        case _:
            handoff.task = {**handoff.task, **result}


def reported(agent: str, handoff: Handoff, causes: list[Cause]) -> Reported:
    """The hand-off as it stands."""
    status: Status = _STATES.get(handoff.state or "", "unknown") if handoff.state is not None else "ok"
    error = error_type = None
    if handoff.error is not None:
        code = handoff.error.get("code")
        status, error = "error", str(handoff.error.get("message") or "")
        error_type = _CODES.get(code, f"jsonrpc_{code}") if isinstance(code, int) else "jsonrpc_error"
    elif status in ("error", "denied"):
        error_type = f"task_{handoff.state}"
        error = _words(handoff.task.get("status", {}).get("message"))
    return _report(agent, handoff, causes, status, error, error_type)


def unanswered(agent: str, handoff: Handoff, causes: list[Cause], status: Status, kind: str, text: str) -> Reported:
    """A hand-off whose answer never came, or broke off."""
    return _report(agent, handoff, causes, status, text or None, kind)


def _report(
    agent: str, handoff: Handoff, causes: list[Cause], status: Status, error: str | None, error_type: str | None
) -> Reported:
    a2a = {"agent": agent, "method": handoff.method, "task": handoff.task_id, "context": handoff.context_id}
    return Reported(
        kind="handoff",
        id=handoff.report_id,
        time=clock.from_epoch(handoff.began),
        duration_ms=round((time.monotonic() - handoff.clock) * 1000, 3),
        name=agent,
        arguments=handoff.params.get("message", handoff.params),
        result=handoff.task or None,
        status=status,
        error=error,
        error_type=error_type,
        boundary="external",
        causes=causes,
        ext={"a2a": {key: value for key, value in {**a2a, "state": handoff.state}.items() if value is not None}},
    )


def _artifact(artifacts: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Add an artifact, or further parts to one that has begun."""
    artifact = result.get("artifact")
    if not isinstance(artifact, dict):
        return
    known = next((each for each in artifacts if each.get("artifactId") == artifact.get("artifactId")), None)
    if known is None:
        artifacts.append(dict(artifact))
    elif result.get("append"):
        known["parts"] = [*known.get("parts", []), *artifact.get("parts", [])]
    else:
        known.update(artifact)


def _words(message: Any) -> str | None:
    parts = message.get("parts") if isinstance(message, dict) else None
    texts = [str(part["text"]) for part in parts or () if isinstance(part, dict) and "text" in part]
    return "\n".join(texts) or None
