"""Candidates in recorded conversations whose outcome an environment judged: what they are worth as rewards."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from atdp.records import Action, EventDraft, Message, Part
from services.proxy.harvest import at_close, harvest
from tests.harvest.making import event, tool, user
from tests.shared import SHARED

FILES = sorted((SHARED / "data").glob("tau2-*/*_*.json"))


def simulations() -> Iterator[dict[str, Any]]:
    for path in FILES:
        document = json.loads(path.read_text())
        if isinstance(document, dict):
            yield from document.get("simulations", ())


def events_of(simulation: dict[str, Any]) -> list[EventDraft]:
    """A tau2 conversation as events; the simulated user's stop marks are not words of a user."""
    events, asked = [], {}
    for message in simulation["messages"]:
        content = (message.get("content") or "").replace("###STOP###", "").replace("###TRANSFER###", "")
        if message["role"] == "user" and content.strip():
            events.append(user(content))
        elif message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            asked |= {call["id"]: call for call in calls}
            parts = [Part(type="text", content=content)] if content else []
            parts += [Part(type="tool_call", id=c["id"], name=c["name"], arguments=c["arguments"]) for c in calls]
            events.append(event("llm_call", a=Action(messages=[Message(role="assistant", parts=parts)])))
        elif message["role"] == "tool" and message.get("id") in asked:
            call = asked[message["id"]]
            events.append(tool(call["name"], call["arguments"], message.get("content")))
    return events


@pytest.mark.skipif(not FILES, reason="the recorded conversations (../shared/data/tau2-*) are not here")
def test_what_candidates_say_of_outcomes_that_an_environment_judged() -> None:
    """Run with -s for the table in docs/feedback.md."""
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    everything: list[float] = []
    for simulation in simulations():
        reward = float((simulation.get("reward_info") or {}).get("reward") or 0.0)
        events = events_of(simulation)
        everything.append(reward)
        for name, label in {(a.name, str(a.label)) for a in [*harvest([], events), *at_close(events, "idle")]}:
            rewards[name, label].append(reward)
    base = sum(everything) / len(everything)
    print(f"\n{len(everything)} conversations, mean reward {base:.3f}")
    for key, found in sorted(rewards.items()):
        print(f"{' '.join(key):32} {len(found):4} conversations, mean reward {sum(found) / len(found):.3f}")

    def mean(*key: str) -> float:
        found = rewards[key[0], key[1]]
        return sum(found) / len(found)

    assert mean("tool_result", "corrected") < base
    assert mean("tool_result", "contradicted") < base
    assert mean("user_wants_person", "asked") < base
    # politeness is no verdict: this is why thanks may not be optimised as they are
    assert abs(mean("user_thanks", "closing") - base) < 0.1
