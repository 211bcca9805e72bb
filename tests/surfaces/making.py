"""Evidence as an evolution would have it, and what the model is sent once a proposal is applied."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from evaluators import corrections, dataset, diagnosis
from evaluators.cases import Case
from evaluators.steps import Step
from evoplane.settings import Settings
from flows.interventions import INTERVENTIONS, Evidence, Proposal
from registry.manifest import Manifest, Policy
from services.router.overlays import apply_overlays, undo
from tests.evaluators.conftest import make_case

CONFIG = Settings()
POLICY = Policy(base="m", served_name="m")


def manifest(**given: Any) -> Manifest:
    return Manifest(policy=POLICY, **given)


def evidence(cases: list[Case], version: Manifest | None = None, **given: Any) -> Evidence:
    facts = corrections.established(cases)
    return Evidence(
        agent="support",
        snapshot="x.dir",
        cases=cases,
        current=cases,
        manifest=version or manifest(),
        facts=facts,
        diagnosis=diagnosis.diagnose(cases, facts),
        split=dataset.split(cases, 0.25),
        **given,
    )


def propose(surface: str, seen: Evidence, config: Settings = CONFIG) -> list[Proposal]:
    return list(INTERVENTIONS[surface].propose(seen, config))


def applied(seen: Evidence, proposal: Proposal) -> Manifest:
    return INTERVENTIONS[proposal.surface].apply(seen.manifest, proposal, {})


def sent(version: Manifest, request: dict[str, Any], tenant: str = "northwind") -> dict[str, Any]:
    """What the model gets; and what the client sent comes back out of it."""
    result, overlays = apply_overlays(request, version, tenant)
    assert undo(result, overlays) == request
    return result


def asked(text: str, system: str = "", **given: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": text}], **given}


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def step(name: str, status: str = "ok", text: str = "done", **arguments: Any) -> Step:
    error = "tool_error" if status == "error" else ""
    return Step("tool_call", name, arguments, status, error, text, f"ev_{name}")


def showing(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ],
    }


def ordinary(n: int = 40, failing: float = 0.05, seed: int = 0) -> list[Case]:
    """Work that goes well but for a few failures that nobody explains."""
    chance = random.Random(seed)
    asks = ("Where is my parcel {}?", "Track order {} please.", "Any news on {}?", "Has {} been sent?")
    cases = []
    for number in range(n):
        order = f"B{2000 + number}"
        request = asks[number % len(asks)].format(order)
        call = ("track_order", {"order_id": order})
        cases.append(
            make_case(
                request,
                reward=float(chance.random() > failing),
                calls=[call],
                steps=(step(call[0], **call[1]),),
                tenant=("northwind", "lumen")[number % 2],
            )
        )
    return cases


def of(case: Case, **given: Any) -> Case:
    return msgspec.structs.replace(case, **given)
