"""A request as a version wants it.

`apply_overlays` is pure: replay, shadow, training contexts and the gateway get the same request
from the same manifest. Every change is recorded so that `undo` gives back what the client sent.
"""

from __future__ import annotations

from typing import Any

from registry.manifest import Manifest
from services.proxy.dialects import CHAT, Dialect
from services.router.overlays import guardrails, memory, params, prompt, skills, tools
from services.router.overlays.draft import Draft, Overlay
from services.router.overlays.plan import plan_of

DEFAULT_ITEMS = 8
DEFAULT_BYTES = 2000
DEFAULT_TOTAL = 8000


def apply_overlays(
    request: dict[str, Any],
    manifest: Manifest,
    tenant: str,
    *,
    max_items: int = DEFAULT_ITEMS,
    max_bytes: int = DEFAULT_BYTES,
    max_total: int = DEFAULT_TOTAL,
    dialect: Dialect = CHAT,
) -> tuple[dict[str, Any], list[Overlay]]:
    """The request as the version wants it, and what was changed or left alone, in that order.

    The given request is left as it is, and returned itself where nothing changes. The client's own words are edited
    first, then text is put behind them: the harness's, guardrails, skills, memory (`"\\nNotes:\\n- text\\n- text"`).
    Without system instructions they begin with it, less the leading line break.

    `max_items` and `max_bytes` bound the memory that is shown, and the skills; `max_total` bounds, in bytes, what all
    surfaces add together. Guardrails are the operator's and always shown.
    """
    plan = plan_of(manifest)
    if plan.empty:
        return request, []
    draft = Draft(request, tenant, dialect, max_items=max_items, max_bytes=max_bytes, max_total=max_total)
    params.apply(draft, manifest.harness.params)
    prompt.apply(draft, manifest.harness)
    guardrails.apply(draft, plan)
    skills.apply(draft, plan, manifest.retrieval)
    memory.apply(draft, plan, manifest.retrieval)
    tools.apply(draft, manifest.tools)
    return draft.result()
