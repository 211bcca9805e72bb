"""`POST /v1/feedback`: what people and systems say later about what the agent did.

Any order of arrival is fine: a signal for something not known yet waits in the store until it is. A
202 means that it survives a crash right after.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atdp import clock
from atdp.ids import derived_id, new_id
from atdp.records import AnnotationDraft, Scale, Source, Target
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send, respond_json
from services.gateway.core import Gateway
from services.proxy.clients import CONTROL, MAX_ID_LENGTH
from services.proxy.drafts import Signal
from services.proxy.log import ENDING_ANNOTATION
from services.proxy.store import StoreUnavailable

_PENDING = "pending"
"""Stands for the trajectory that the store will find."""
_AT_MOST = 1000
"""Signals in one request."""


class Feedback(Struct, forbid_unknown_fields=True):
    """One signal, as the API takes it."""

    name: str
    """`resolved`, `user_correction`, `demonstration`, or any other name of a reward."""
    session_id: str | None = None
    trajectory_id: str | None = None
    event_id: str | None = None
    value: float | bool | None = None
    explanation: str | None = None
    demonstration: dict[str, Any] | None = None
    """The OpenAI message that the agent should have given."""
    source: Source | None = None
    confidence: float | None = None
    optimizable: bool | None = None
    """May a trainer use it directly? Not what a model said, unless it is told so."""
    id: str | None = None
    """Makes sending it again harmless."""
    observed_at: str | None = None

    def target(self) -> tuple[Literal["event", "trajectory", "session"], str]:
        """The most precise thing it is about."""
        if self.event_id:
            return "event", self.event_id
        if self.trajectory_id:
            return "trajectory", self.trajectory_id
        if self.session_id:
            return "session", self.session_id
        raise errors.malformed("Feedback needs one of event_id, trajectory_id, session_id.", "session_id")


async def feedback(gateway: Gateway, request: Request, send: Send) -> None:
    """Store one signal or a list of them; 202 with their ids once they are durable."""
    key = gateway.authenticate(request, "feedback")
    gateway.require_recording(key.tenant)
    parsed, _ = await request.json(gateway.settings.gateway.max_body_bytes)
    items = parsed if isinstance(parsed, list) else [parsed]
    if not 0 < len(items) <= _AT_MOST:
        raise errors.malformed(f"Send between 1 and {_AT_MOST} signals at once.")
    signals = [_signal(key, _read(item, index)) for index, item in enumerate(items)]
    await gateway.confirmed(key)
    try:
        stored = await gateway.store.append(key.tenant, signals)
    except StoreUnavailable as error:
        raise errors.unrecorded(error) from error
    ended = [
        item.trajectory_id
        for item, signal in zip(stored, signals, strict=True)
        if item.trajectory_id and signal.annotation.name == ENDING_ANNOTATION
    ]
    gateway.sessions.close(key.tenant, ended)
    gateway.harvester.closed(key.tenant, ended, "outcome")
    answer = {"ids": [item.id for item in stored], "bound": [item.bound for item in stored]}
    await respond_json(send, 202, answer)


def _read(item: Any, index: int) -> Feedback:
    try:
        read = msgspec.convert(item, Feedback)
    except msgspec.ValidationError as error:
        raise errors.malformed(f"Signal {index}: {error}.") from error
    ids = (read.event_id, read.trajectory_id, read.session_id, read.id)
    if any(id is not None and len(id) > MAX_ID_LENGTH for id in ids):
        raise errors.malformed(f"Signal {index}: ids have {MAX_ID_LENGTH} characters at most.")
    if any(id is not None and CONTROL.search(id) for id in (*ids, read.name)):
        raise errors.malformed(f"Signal {index}: ids and names have no control characters.")
    if read.confidence is not None and not 0 <= read.confidence <= 1:
        raise errors.malformed(f"Signal {index}: confidence lies between 0 and 1.", "confidence")
    return read


def _signal(key: Key, item: Feedback) -> Signal:
    kind, target = item.target()
    return Signal(
        target_kind=kind, target=target, agent=key.agent, annotation=_annotation(key, item), purpose=key.purpose
    )


def _annotation(key: Key, item: Feedback) -> AnnotationDraft:
    """A demonstration is a preference, a correction a critique, anything else a reward."""
    ext: dict[str, Any] = {"key": key.id}
    placeholder = Target(trajectory_id=_PENDING)
    fields: dict[str, Any] = {"value": _or_unset(item.value), "optimizable": _optimizable(key, item)}
    if item.name == "demonstration" or item.demonstration is not None:
        if item.demonstration is None or item.demonstration.get("role") != "assistant":
            raise errors.malformed("A demonstration is a message with role 'assistant'.", "demonstration")
        kind = "preference"
        ext["demonstration"] = item.demonstration
    elif item.name == "user_correction":
        if not item.explanation:
            raise errors.malformed("A user_correction carries the user's words in 'explanation'.", "explanation")
        kind = "critique"
        fields["value"] = -1.0 if item.value is None else item.value
        fields["scale"] = Scale(min=-1, max=1, higher_is_better=True)
    else:
        if item.value is None:
            raise errors.malformed(f"The reward {item.name!r} needs a value.", "value")
        kind = "reward"
    if item.name == ENDING_ANNOTATION:
        if item.value not in (0, 1):
            raise errors.malformed("'resolved' is 0 or 1.", "value")
        fields["value"] = float(item.value)
        fields["scale"] = Scale(min=0, max=1, higher_is_better=True)
    return AnnotationDraft(
        atdp="1.0",
        # a client's id is its own: two keys using the same one are two signals
        id=derived_id("an", key.tenant, key.agent, item.id) if item.id else new_id("an"),
        trajectory_id=_PENDING,
        kind=kind,  # type: ignore[arg-type]
        name=item.name,
        targets=[placeholder],
        source=item.source or Source(kind="end_user", id=key.id),
        time=clock.now(),
        explanation=_or_unset(item.explanation),
        confidence=_or_unset(item.confidence),
        observed_at=_time(item.observed_at),
        ext=ext,
        **fields,
    )


def _optimizable(key: Key, item: Feedback) -> bool:
    said_by_a_model = item.source is not None and item.source.kind in ("llm_judge", "reward_model")
    wanted = not said_by_a_model if item.optimizable is None else item.optimizable
    return wanted and key.purpose == "serve"


def _time(text: str | None) -> str | UnsetType:
    if text is None:
        return UNSET
    try:
        return clock.timestamp(clock.parse(text))
    except ValueError as error:
        raise errors.malformed(f"observed_at: {error}.", "observed_at") from error


def _or_unset(value: Any) -> Any:
    return UNSET if value is None else value
