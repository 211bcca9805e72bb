"""`POST /v1/traces`: spans of any agent that OpenTelemetry instruments (OTLP/HTTP; protobuf or JSON; gzip).

Tools, retrievals, hand-offs, guardrails and memory become events, joined to the model calls captured
here: by the answer's id, the conversation's id, the tool call's id, or by lying inside the span in time.
A model call that passed the gateway is not recorded twice; one that did not is, with its origin. Spans
that are no step of an agent are taken and left alone. Answers and errors are OTLP's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from atdp import clock
from atdp.ids import derived_id
from atdp.records import AnnotationDraft, Cause, Source, Target
from registry.tenants import Key
from services.gateway import errors, otlp
from services.gateway.asgi import Request, Send, respond
from services.gateway.boundary import Again, Item, Ready, known, named_session, store_reports
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.peers import session_named
from services.proxy import spans
from services.proxy.drafts import Signal
from services.proxy.reports import Reported, report_id
from services.proxy.sessions import Session
from services.proxy.store import StoreUnavailable

if TYPE_CHECKING:
    from atdp.convert.otlp import SpanStep


async def traces(gateway: Gateway, request: Request, send: Send) -> None:
    """Take an ExportTraceServiceRequest; the answer says how many of its spans were refused, and why."""
    kind = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    kind = otlp.PROTOBUF if kind == otlp.PROTOBUF else otlp.JSON
    try:
        key = gateway.authenticate(request, "feedback")
        gateway.require_recording(key.tenant)
        body = await request.body(gateway.settings.gateway.max_body_bytes)
        exported = await asyncio.to_thread(otlp.decode, request, body, gateway.settings.gateway.max_body_bytes)
        refused = await _Import(gateway, key, session_named(request)).take(exported)
    except ApiError as error:
        await respond(send, error.status, otlp.status(error, kind), [otlp.content_type(kind), *error.headers])
        return
    await respond(send, 200, otlp.answer(refused, kind), [otlp.content_type(kind)])


class _Import:
    """The spans of one request on their way into the log."""

    def __init__(self, gateway: Gateway, key: Key, named: str | None) -> None:
        self._gateway = gateway
        self._key = key
        self._owner = (key.tenant, key.agent, key.purpose)
        self._named = named
        self._memory = gateway.traces

    async def take(self, exported: dict[str, Any]) -> otlp.Refused:
        from atdp.convert.otlp import steps

        refused = otlp.Refused()
        try:
            made = await asyncio.to_thread(steps, exported)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise errors.malformed(f"This is no ExportTraceServiceRequest: {error!r}.") from error
        whole = [each for each in made if spans.identified(each)]
        refused.add("a span needs traceId and spanId", len(made) - len(whole))
        if not all(spans.timed(each) for each in whole):
            raise errors.malformed("A span's times are nanoseconds since 1970, in 64 bits.")
        by_trace: dict[str, list[SpanStep]] = {}
        for each in whole:
            by_trace.setdefault(each.span.trace_id, []).append(each)
        for trace_id, found in by_trace.items():
            await self._trace(trace_id, found, refused)
        return refused

    async def _trace(self, trace_id: str, found: list[SpanStep], refused: otlp.Refused) -> None:
        session = self._session(trace_id, found)
        for each in found:
            self._identify(session, each)
        ids = {each.span.span_id: each for each in found}
        items: list[Item] = []
        for each in found:
            try:
                item = self._item(session, each, ids)
            except (msgspec.ValidationError, ValueError, TypeError) as error:
                refused.add(f"{each.span.name}: {error}")
                continue
            if item is not None:
                items.append(item)
        if not items:
            return
        before = await known(self._gateway, self._key, [item for item in items if isinstance(item, Reported)])
        new = [i for i in items if not isinstance(i, Reported) or report_id(self._key, i) not in before]
        try:
            await store_reports(self._gateway, session, new)
        except ApiError as error:
            if error.status != 400:
                raise
            refused.add(str(error), len(new))
            return
        await self._evaluations(found)

    # -- which session

    def _session(self, trace_id: str, found: list[SpanStep]) -> Session:
        """The session of a trace, by the best evidence in it; once found, it holds for the trace."""
        id = self._named or self._memory.session(self._owner, trace_id) or self._evidence(found)
        session = named_session(self._gateway, self._key, id or f"otlp-{trace_id}")
        if id is not None:
            self._memory.belongs(self._owner, trace_id, session.session_id)
        return session

    def _evidence(self, found: list[SpanStep]) -> str | None:
        sessions = self._gateway.sessions
        for each in found:
            answer = spans.response_id(each)
            if answer is not None and (session := sessions.by_answer(self._key, answer)) is not None:
                return session.session_id
        for each in found:
            call = each.step.a.get("call_id")
            waiting = sessions.waiting(self._key) if call is not None else []
            if (session := next((s for s in waiting if call in s.calls), None)) is not None:
                return session.session_id
        named = next((name for each in found if (name := spans.session_named(each)) is not None), None)
        if named is not None:
            return named
        for each in found:
            if each.step.kind == "llm_call" and (call := self._captured_at(each)) is not None:
                return str(call.session_id)
        return None

    def _captured_at(self, made: SpanStep) -> Any:
        return self._gateway.recent.call_within(self._key, *spans.interval(made), spans.output_tokens(made))

    # -- what each is

    def _identify(self, session: Session, made: SpanStep) -> None:
        """Say which event the span is, before anything points at it."""
        span = made.span
        if self._memory.event(self._owner, span.trace_id, span.span_id) is not None:
            return
        id: str | None = None
        if made.step.kind == "llm_call":
            answer = spans.response_id(made)
            step = self._gateway.sessions.step(self._key, answer) if answer is not None else None
            captured = None if step is not None else self._captured_at(made)
            id = step.event_id if step is not None else (captured.event_id if captured is not None else None)
            id = id or spans.span_event_id(self._key, span.trace_id, span.span_id)
        elif spans.is_step(made):
            call_id = made.step.a.get("call_id")
            id = session.results.get(call_id) if isinstance(call_id, str) else None
            id = id or report_id(self._key, Reported(kind="tool_call", id=spans.report_key(made)))
        if id is not None:
            self._memory.is_event(self._owner, span.trace_id, span.span_id, id)

    def _event(self, made: SpanStep, span_id: str | None) -> str | None:
        return None if span_id is None else self._memory.event(self._owner, made.span.trace_id, span_id)

    def _item(self, session: Session, made: SpanStep, ids: dict[str, SpanStep]) -> Item | None:
        """What the log takes of a span; None when it has it already, or it is no step."""
        own = self._event(made, made.span.span_id)
        parent = self._event(made, made.parent_id or made.span.parent_id)
        known_causes = [(self._event(made, span_id), rel) for span_id, rel in made.causes]
        causes = msgspec.convert([{"id": id, "rel": rel} for id, rel in known_causes if id is not None], list[Cause])
        if made.step.kind == "llm_call":
            captured = own != spans.span_event_id(self._key, made.span.trace_id, made.span.span_id)
            inner = made.parent_id is not None and ids[made.parent_id].step.kind == "llm_call"
            if captured or inner:  # two instrumentations may wrap one call
                return None
            return Ready(*spans.model_call(made, self._key, parent, causes))
        if not spans.is_step(made):
            return None
        reported = spans.reported(made, session.session_id, parent, causes)
        if own is not None and own != report_id(self._key, reported):
            return Again(reported, own)
        if reported.call_id is None and reported.name is not None:
            same = self._gateway.recent.operation(session.trajectory_id, reported.name, reported.arguments)
            if same is not None:
                self._memory.is_event(self._owner, made.span.trace_id, made.span.span_id, same)
                return Again(reported, same)
        return reported

    async def _evaluations(self, found: list[SpanStep]) -> None:
        """Scores that spans carry are signals about their events."""
        signals = [
            _signal(self._key, made, index, evaluation, event)
            for made in found
            if (event := self._event(made, made.span.span_id)) is not None
            for index, evaluation in enumerate(made.step.evaluations)
        ]
        if signals:
            try:
                await self._gateway.store.append(self._key.tenant, signals)
            except StoreUnavailable as error:
                raise errors.unrecorded(error) from error


def _signal(key: Key, made: SpanStep, index: int, evaluation: dict[str, Any], event_id: str) -> Signal:
    source = evaluation.get("source") or {"kind": "code"}
    fields = {name: value for name, value in evaluation.items() if name in ("value", "label", "explanation")}
    annotation = AnnotationDraft(
        atdp="1.0",
        id=derived_id("an", key.tenant, key.agent, spans.report_key(made), str(index)),
        trajectory_id="pending",
        kind="reward",
        name=str(evaluation["name"]),
        targets=[Target(trajectory_id="pending")],
        source=msgspec.convert(source, Source),
        time=clock.now(),
        optimizable=False,
        **fields,
    )
    return Signal(target_kind="event", target=event_id, agent=key.agent, annotation=annotation, purpose=key.purpose)
