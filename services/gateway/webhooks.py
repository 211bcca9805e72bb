"""`POST /v1/feedback/webhooks/{source}`: what other systems say later, as candidate signals.

A helpdesk says that a ticket was reopened, a payment system that a refund was reversed, a forge that
the tests passed or the change was merged. The sender is proven by its signature; which of its messages
mean what is said in the settings. The same message again is the same signal: ids come from the signed
body, because a sender's delivery header is not signed.
"""

from __future__ import annotations

import os
import re
from typing import Any

import orjson
from msgspec import UNSET

from atdp import clock
from atdp.canonical import digest_bytes
from atdp.ids import derived_id
from atdp.records import AnnotationDraft, Scale, Source, Target
from evoplane.settings import WebhookRule, WebhookSource
from services.gateway import errors
from services.gateway.asgi import Request, Send, respond_json
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.signatures import BadSignature, verify
from services.proxy.drafts import Signal
from services.proxy.sessions import MAX_ID_LENGTH
from services.proxy.store import StoreUnavailable

_DELIVERY = (b"x-github-delivery", b"x-zendesk-webhook-invocation-id", b"x-request-id")
_NOTHING = object()


async def webhook(gateway: Gateway, request: Request, send: Send, name: str) -> None:
    """Store what a message means; 202 with the signals' ids once they are durable, none when it means nothing."""
    if request.method != "POST":
        raise ApiError(405, f"Use POST for {request.path}.", code="method_not_allowed")
    source = gateway.settings.webhooks.get(name)
    if source is None:
        raise ApiError(
            404, f"No webhook source {name!r}; add [webhooks.{name}] to evoplane.toml.", code="unknown_source"
        )
    gateway.require_recording(source.tenant)
    body = await request.body(gateway.settings.gateway.max_body_bytes)
    try:
        verify(source.scheme, source.header, _secrets(name, source), request.headers, body, source.tolerance_s)
    except BadSignature as error:
        raise ApiError(401, str(error), type="authentication_error", code="bad_signature") from error
    payload = _payload(body)
    signals = [
        signal
        for index, rule in enumerate(source.rules)
        if (signal := _signal(name, source, rule, index, payload, body, _delivery(request))) is not None
    ]
    try:
        stored = await gateway.store.append(source.tenant, signals) if signals else []
    except StoreUnavailable as error:
        raise errors.unrecorded(error) from error
    answer = {"ids": [item.id for item in stored], "bound": [item.bound for item in stored]}
    await respond_json(send, 202, answer)


def pointed(document: Any, pointer: str) -> Any:
    """The value that a JSON pointer (RFC 6901) names; a marker of its own when there is none."""
    value = document
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _NOTHING
    return value


def matches(payload: Any, when: dict[str, Any]) -> bool:
    """Has the payload these values? A list stands for any of its values, `"*"` for anything that is there."""
    for pointer, wanted in when.items():
        value = pointed(payload, pointer)
        if value is _NOTHING or (wanted != "*" and value not in (wanted if isinstance(wanted, list) else [wanted])):
            return False
    return True


def _signal(
    name: str, source: WebhookSource, rule: WebhookRule, index: int, payload: Any, body: bytes, delivery: str | None
) -> Signal | None:
    """What a rule makes of a message; None when it does not speak of it, or names nothing."""
    if not matches(payload, rule.when):
        return None
    target = _target(rule, payload)
    value = rule.value if rule.value_at is None else pointed(payload, rule.value_at)
    if target is None or isinstance(value, str) or not isinstance(value, int | float):
        return None
    once = pointed(payload, source.delivery) if source.delivery is not None else _NOTHING
    ext = {"webhook": name, **({} if delivery is None else {"delivery": delivery})}
    annotation = AnnotationDraft(
        atdp="1.0",
        id=derived_id(
            "an", source.tenant, source.agent, "webhook", name, rule.name, str(index),
            digest_bytes(body) if once is _NOTHING else str(once),
        ),
        trajectory_id="pending",
        kind="reward",
        name=rule.name,
        targets=[Target(trajectory_id="pending")],
        source=Source(kind=rule.source, id=name),
        time=clock.now(),
        value=value,
        label=rule.label or UNSET,
        scale=Scale(min=rule.scale[0], max=rule.scale[1], higher_is_better=True),
        confidence=rule.confidence,
        optimizable=False,
        observed_at=_observed(pointed(payload, rule.time_at)) if rule.time_at is not None else UNSET,
        ext=ext,
    )  # fmt: skip
    return Signal(target_kind=rule.target, target=target, agent=source.agent, annotation=annotation, purpose="serve")


def _target(rule: WebhookRule, payload: Any) -> str | None:
    value = pointed(payload, rule.target_at)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    if rule.target_pattern is not None:
        found = re.search(rule.target_pattern, text)
        if found is None:
            return None
        text = found.group(1)
    return text if 0 < len(text) <= MAX_ID_LENGTH else None


def _observed(value: Any) -> Any:
    """A time in the payload: RFC 3339 or seconds since 1970; absent when it is neither."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return clock.from_epoch(value)
        return clock.timestamp(clock.parse(value)) if isinstance(value, str) else UNSET
    except (ValueError, OverflowError, OSError):
        return UNSET


def _payload(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.malformed(f"The request body is not valid JSON: {error}") from error


def _secrets(name: str, source: WebhookSource) -> list[str]:
    secrets = [secret for variable in source.secret_env if (secret := os.environ.get(variable))]
    if not secrets:
        raise ApiError(
            503,
            f"The secret of {name!r} is not set in the gateway's environment.",
            type="server_error",
            code="not_configured",
        )
    return secrets


def _delivery(request: Request) -> str | None:
    return next((value for name in _DELIVERY if (value := request.header(name))), None)
