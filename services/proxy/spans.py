"""From a span that is a step of an agent to what the log takes: a report, or a whole event for a model call.

What a span means is `atdp.convert.otlp`'s to say; here it gets its identity and its links.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from atdp import clock
from atdp.canonical import digest
from atdp.error_class import error_class
from atdp.ids import derived_id
from atdp.records import Cause, Context, ContextBody, HarnessInfo, Model
from registry.tenants import Key
from services.proxy.clients import CONTROL
from services.proxy.reports import Reported

if TYPE_CHECKING:
    from atdp.convert.otlp import SpanStep

_NO_STEPS = frozenset({"x.chain", "x.unknown", "x.prompt", "x.evaluator", "x.create_agent", "x.workflow"})
"""Glue between steps, which instrumentations also write as spans."""
_NAME = re.compile(r"[^a-z0-9_.-]+")
_SESSION_KEYS = ("evoplane.session.id", "gen_ai.conversation.id", "session.id", "langsmith.trace.session_id")
_LATEST_NS = 2**64
_OUTPUT_TOKENS = "output_tokens"


def is_step(made: SpanStep) -> bool:
    """Is the span a step of its own? An agent's outermost span is the whole run, and no hand-off."""
    if made.step.kind in _NO_STEPS:
        return False
    return made.step.kind != "handoff" or made.span.parent_id is not None


def identified(made: SpanStep) -> bool:
    """Has the span ids that can name it?"""
    ids = (made.span.trace_id, made.span.span_id)
    return all(ids) and not any(CONTROL.search(id) for id in ids)


def timed(made: SpanStep) -> bool:
    """Are its times such as the protocol has?"""
    return all(0 <= at < _LATEST_NS for at in (made.span.start_ns, made.span.end_ns))


def span_event_id(key: Key, trace_id: str, span_id: str) -> str:
    """The event of a span: the same however often it is exported."""
    return derived_id("ev", key.tenant, key.agent, "otlp", trace_id, span_id)


def report_key(made: SpanStep) -> str:
    """The span as an id of its reporter."""
    return f"otlp:{made.span.trace_id}:{made.span.span_id}"


def session_named(made: SpanStep) -> str | None:
    """The conversation that a span names, if what it names can be an id."""
    attributes = {**made.span.resource, **made.span.attributes}
    named = next((attributes[name] for name in _SESSION_KEYS if attributes.get(name)), made.step.session_id)
    return None if named is None or CONTROL.search(str(named)[:200]) else str(named)[:200]


def response_id(made: SpanStep) -> str | None:
    """The provider's id of the answer."""
    named = made.span.attributes.get("gen_ai.response.id")
    return named if isinstance(named, str) else None


def interval(made: SpanStep) -> tuple[float, float]:
    """When the span began and ended, seconds since 1970."""
    return made.span.start_ns / 1e9, made.span.end_ns / 1e9


def output_tokens(made: SpanStep) -> int | None:
    count = made.step.m.get("usage", {}).get(_OUTPUT_TOKENS)
    return count if isinstance(count, int) else None


def reported(made: SpanStep, session_id: str, parent_id: str | None, causes: list[Cause]) -> Reported:
    """The report of an operation's span; raises `msgspec.ValidationError` when it can't be one."""
    step, span = made.step, made.span
    error = step.y.get("error") or {}
    message = error.get("message") or span.message or None
    failed = span.failed or bool(error)
    kind = error.get("type") or (error_class(message) if failed and message else None)
    fields: dict[str, Any] = {
        "kind": _NAME.sub("_", step.kind.lower()) if step.kind.startswith("x.") else step.kind,
        "session_id": session_id,
        "id": report_key(made),
        "time": clock.from_epoch(span.start_ns / 1e9),
        "duration_ms": max(0.0, (span.end_ns - span.start_ns) / 1e6),
        "name": str(step.a.get("name") or span.name)[:500],
        "call_id": step.a.get("call_id"),
        "parent_id": parent_id,
        "span_id": span.span_id,
        "arguments": step.a.get("arguments"),
        "result": step.y.get("result"),
        "decision": step.a.get("decision"),
        "status": step.y.get("status") or ("error" if failed else "ok"),
        "error": None if message is None else str(message),
        "error_type": None if kind is None else str(kind),
        "ext": {"otel": _otel(made)},
    }
    found = msgspec.convert(fields, Reported)
    found.causes = causes
    return found


def model_call(made: SpanStep, key: Key, parent_id: str | None, causes: list[Cause]) -> tuple[dict[str, Any], Context]:
    """The fields of a model call that did not pass the gateway, and the context it was made under."""
    step, span = made.step, made.span
    outcome = {"status": "error" if span.failed or "error" in step.y else "ok", **step.y}
    if span.failed:
        outcome.setdefault("error", {"type": "error", **({"message": span.message} if span.message else {})})
    fields: dict[str, Any] = {
        "id": span_event_id(key, span.trace_id, span.span_id),
        "kind": "llm_call",
        "time": clock.from_epoch(span.start_ns / 1e9),
        "duration_ms": max(0.0, (span.end_ns - span.start_ns) / 1e6),
        "span_id": span.span_id,
        "actor": {"type": "agent"},
        "o": step.o,
        "h": step.h,
        "a": step.a,
        "y": outcome,
        "m": {**step.m, "tags": {"agent": key.agent, "purpose": key.purpose}},
        "ext": {"origin": "otlp", "otel": _otel(made)},
    }
    if parent_id is not None:
        fields["parent_id"] = parent_id
    if causes:
        fields["causes"] = msgspec.to_builtins(causes)
    model = step.context.get("model")
    body = ContextBody(
        harness=HarnessInfo(name=key.agent), model=msgspec.convert(model, Model) if model else msgspec.UNSET
    )
    context = Context(atdp="1.0", id=digest(msgspec.to_builtins(body)), body=body)
    return {name: value for name, value in fields.items() if value not in ({}, None)}, context


def _otel(made: SpanStep) -> dict[str, Any]:
    """What the span says that has no place elsewhere."""
    rest = {name: value for name, value in made.span.attributes.items() if name not in made.step.told}
    return {"name": made.span.name, "trace_id": made.span.trace_id, **({"attributes": rest} if rest else {})}
