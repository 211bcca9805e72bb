"""Asking a shadow version: the same request, its own overlays, no client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from services.gateway.translation import translated
from services.proxy.capture import Exchange
from services.proxy.dialects import CHAT
from services.proxy.ending import Ending
from services.proxy.tokens import TokenCapture
from services.router.overlays import apply_overlays
from services.router.shadow import Shadowed

if TYPE_CHECKING:
    from services.gateway.core import Gateway


async def ask_shadow(gateway: Gateway, exchange: Exchange) -> Shadowed:
    """Send a mirrored exchange to the upstream, record its answer, and say what it was."""
    limits = gateway.settings.gateway
    manifest, dialect = exchange.version.manifest, exchange.dialect
    overlaid, exchange.overlays = apply_overlays(
        exchange.request,
        manifest,
        exchange.session.key.tenant,
        max_items=limits.memory_items,
        max_bytes=limits.memory_bytes,
        max_total=limits.overlay_bytes,
        dialect=dialect,
    )
    translator = translated(gateway.upstreams.worker, dialect, exchange.request, overlaid)
    spoken, asked = (dialect, overlaid) if translator is None else (translator.target, translator.request)
    exchange.translation = None if translator is None else translator.record
    forwarded = {**asked, "model": manifest.policy.served_name}
    if gateway.token_capture and spoken is CHAT:
        forwarded = TokenCapture(asked).request(forwarded)
    async with await gateway.upstreams.worker.post(spoken.path, orjson.dumps(forwarded)) as response:
        raw = await response.read()
        completion, said = None, None
        if response.status == 200 and translator is not None:
            _, completion = translator.whole(orjson.loads(raw)) or (None, None)
        elif response.status == 200:
            parsed = orjson.loads(raw)
            completion, said = dialect.whole(parsed), _message(parsed)
        if completion is not None:
            ending = Ending("ok" if completion.finished else "unknown", completion)
        else:
            text = raw.decode(errors="replace")
            ending = Ending("error", error_type=f"http_{response.status}", error_message=text)
    (await gateway.record(exchange, ending))()
    usage = (completion.usage if completion is not None else None) or {}
    return Shadowed(said, sum(int(usage.get(f"{name}_tokens") or 0) for name in ("prompt", "completion")))


def _message(parsed: Any) -> dict[str, Any] | None:
    """The assistant's message of a chat completion; None for whatever else was answered."""
    choices = parsed.get("choices") if isinstance(parsed, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, dict) else None
