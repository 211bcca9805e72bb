"""Builds cases the way `cases_of` would, with only what a test speaks about spelled out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from evaluators.cases import Action, Call, Case, Remark

_numbers = itertools.count(1)


def make_case(request: str = "How long is the warranty?", **given: Any) -> Case:
    n = next(_numbers)
    clock = f"{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}"
    remarks = tuple(Remark(f"an_{n}_{i}", text, f"2026-01-01T{clock}Z") for i, text in
                    enumerate(given.pop("corrections", ())))  # fmt: skip
    calls = given.pop("calls", ())
    action = Action(text=given.pop("text", ""), calls=tuple(Call(name, arguments) for name, arguments in calls))
    fields: dict[str, Any] = {
        "tenant": "northwind",
        "agent": "support",
        "trajectory_id": f"tr_{n}",
        "session_id": f"se_{n}",
        "event_id": f"ev_{n}",
        "at": f"2026-01-01T{clock}Z",
        "agent_version": "1",
        "role": "champion",
        "purpose": "serve",
        "status": "ok",
        "messages": [{"role": "user", "content": request}],
        "tools": [],
        "params": {},
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 2],
        "overlay_text": "",
        "action": action,
        "reward": 0.0,
        "judged_at": f"2026-01-02T{clock}Z",
        "parent_event_id": None,
        "corrections": remarks,
        "demonstration": None,
        "demonstration_id": None,
        "trainable": True,
        "latency_ms": 100.0,
        "input_tokens": 3,
        "output_tokens": 5,
    }
    return Case(**{**fields, **given})


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    """A demonstrated tool call, as feedback carries it."""
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}]}  # fmt: skip


@pytest.fixture
def case():
    return make_case


@pytest.fixture
def demonstrated():
    return calling
