"""The operator's rules, told to the model with every request."""

from __future__ import annotations

from services.router.overlays.draft import Draft
from services.router.overlays.plan import Plan


def apply(draft: Draft, plan: Plan) -> None:
    if plan.guardrail_text:
        draft.append("guardrails", plan.guardrail_text, always=True, items=plan.guardrail_ids)
