"""Asking a shadow version: the same request, its own overlays, no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from services.proxy.capture import Exchange
from services.proxy.dialects import CHAT
from services.proxy.ending import Ending
from services.proxy.tokens import TokenCapture
from services.router.overlays import apply_overlays

if TYPE_CHECKING:
    from services.gateway.core import Gateway


async def ask_shadow(gateway: Gateway, exchange: Exchange) -> None:
    """Send a mirrored exchange to the upstream and record its answer."""
    limits = gateway.settings.gateway
    manifest, dialect = exchange.version.manifest, exchange.dialect
    overlaid, exchange.overlays = apply_overlays(
        exchange.request,
        manifest,
        exchange.session.key.tenant,
        max_items=limits.memory_items,
        max_bytes=limits.memory_bytes,
        dialect=dialect,
    )
    forwarded = {**overlaid, "model": manifest.policy.served_name}
    if gateway.token_capture and dialect is CHAT:
        forwarded = TokenCapture(exchange.request).request(forwarded)
    async with await gateway.upstreams.worker.post(dialect.path, orjson.dumps(forwarded)) as response:
        raw = await response.read()
        completion = dialect.whole(orjson.loads(raw)) if response.status == 200 else None
        if completion is not None:
            ending = Ending("ok" if completion.finished else "unknown", completion)
        else:
            text = raw.decode(errors="replace")
            ending = Ending("error", error_type=f"http_{response.status}", error_message=text)
    await gateway.record(exchange, ending)
