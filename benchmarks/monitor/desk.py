"""The support agent at work: customers ask, the agent calls its tools, the desk reports what came of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from benchmarks.monitor.client import Client
from examples.support.desk import as_message
from examples.support.scenario import TENANTS, Request, fact_sentence

_ROUNDS = 3
_CORRECTIONS = (
    "No. {fact}",
    "That's wrong. {fact}",
    "{fact} Your colleague told me so.",
    "I read something else: {fact}",
)


@dataclass(frozen=True)
class BackOffice:
    """What the shop's tools really take, and what has to be done for a request: the truth, which no model is told."""

    order_form: str = ""
    """A prefix order numbers must have (`ORD-`)."""
    reasons: tuple[str, ...] = ("damaged", "wrong_item", "changed_mind")
    procedures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the tool a request comes down to: all calls that are due, in order."""

    def right(self, request: Request) -> list[tuple[str, dict[str, str]]]:
        """The calls that are due."""
        if request.tool is None:
            return []
        arguments = dict(request.arguments)
        if self.order_form:
            arguments["order_id"] = self.order_form + arguments["order_id"]
        steps = self.procedures.get(request.tool, (request.tool,))
        return [(n, arguments if n == request.tool else {"order_id": arguments["order_id"]}) for n in steps]

    def call(self, name: str, arguments: Any) -> str:
        """What a tool answers."""
        if not isinstance(arguments, dict) or not all(isinstance(v, str) for v in arguments.values()):
            return "error: invalid arguments"
        if self.order_form and not str(arguments.get("order_id", "")).startswith(self.order_form):
            return f"error: invalid argument order_id: it looks like {self.order_form}A1234"
        if "reason" in arguments and arguments["reason"] not in self.reasons:
            return f"error: invalid argument reason: one of {', '.join(self.reasons)}"
        return f"order {arguments.get('order_id', '')}: ok"


@dataclass(frozen=True)
class Judge:
    """A model that scores answers by their length."""

    middle: float = 90.0
    """Characters at which its score is as likely good as bad."""
    slope: float = 12.0

    def score(self, text: str, rng: random.Random) -> float:
        return float(rng.random() < 1 / (1 + exp(-(len(text) - self.middle) / self.slope)))


@dataclass(frozen=True)
class Desk:
    """Serves customers through the gateway and reports outcomes.

    Args:
        outcomes: share of tickets whose outcome is found out.
        told: share of failures about which somebody says or shows what would have been right.
    """

    client: Client
    keys: Mapping[str, str]
    model: str
    tools: Sequence[Mapping[str, Any]]
    office: BackOffice
    facts: Mapping[str, Mapping[str, str]]
    rule: str = ""
    judge: Judge | None = None
    outcomes: float = 1.0
    told: float = 0.85
    seed: int = 0
    concurrency: int = 16

    async def serve(self, requests: Sequence[Request], on_ticket: Callable[[], None] = lambda: None) -> None:
        queue = iter(requests)

        async def colleague() -> None:
            for request in queue:
                await self._ticket(request)
                on_ticket()

        await asyncio.gather(*(colleague() for _ in range(self.concurrency)))

    async def _ticket(self, request: Request) -> None:
        key = self.keys[request.tenant]
        system = f"You are the support agent of {TENANTS[request.tenant]}." + (f" {self.rule}" if self.rule else "")
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": request.text},
        ]
        done: list[tuple[str, Any]] = []
        text = ""
        first: dict[str, str] = {}
        for _ in range(_ROUNDS):
            body = {"model": self.model, "messages": messages, "tools": self.tools, "temperature": 0.7}
            reply, headers = await self.client.post("/v1/chat/completions", key, body)
            first = first or headers
            said = reply["choices"][0]["message"]
            text = said.get("content") or ""
            if not said.get("tool_calls"):
                break
            messages.append({k: v for k, v in said.items() if k in ("role", "content", "tool_calls")})
            for call in said["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                result = self.office.call(call["function"]["name"], arguments)
                if not result.startswith("error"):
                    done.append((call["function"]["name"], arguments))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        rng = random.Random(f"{self.seed}/{request.id}")
        said_of_it = self._feedback(request, text, done, first, rng)
        if said_of_it:
            await self.client.post("/v1/feedback", key, said_of_it)

    def _feedback(
        self, request: Request, text: str, done: list[tuple[str, Any]], headers: Mapping[str, str], rng: random.Random
    ) -> list[dict[str, Any]]:
        session, event = headers["x-evoplane-session-id"], headers["x-evoplane-event-id"]
        about = {"session_id": session, "event_id": event}
        right = self._right(request, text, done)
        found: list[dict[str, Any]] = []
        if self.judge is not None:
            found.append(
                _resolved(session, self.judge.score(text, rng), {"kind": "llm_judge", "id": "judge"}, "judged")
            )
        if rng.random() < self.outcomes:
            found.append(_resolved(session, int(right), {"kind": "environment", "id": "helpdesk"}, "resolved"))
            if not right and rng.random() < self.told:
                found.append(self._remark(request, about, rng))
        return found

    def _right(self, request: Request, text: str, done: list[tuple[str, Any]]) -> bool:
        if request.topic is not None:
            return not done and self.facts[request.tenant][request.topic] in text
        return done == self.office.right(request)

    def _remark(self, request: Request, about: dict[str, str], rng: random.Random) -> dict[str, Any]:
        """The customer says what is right, or a colleague does it."""
        if request.topic is not None:
            fact = fact_sentence(request.topic, self.facts[request.tenant][request.topic])
            words = rng.choice(_CORRECTIONS).format(fact=fact)
            said = {"name": "user_correction", "value": -1, "explanation": words, "source": {"kind": "end_user"}}
            return {**about, **said, "id": f"{about['session_id']}/correction"}
        calls = [as_message({"tool": n, "arguments": a})["tool_calls"][0] for n, a in self.office.right(request)]
        listed = [{**call, "id": f"call_demo_{i}"} for i, call in enumerate(calls)]
        shown = {"role": "assistant", "content": None, "tool_calls": listed}
        colleague = {"kind": "human", "id": "colleague"}
        said = {"name": "demonstration", "value": 1, "demonstration": shown, "source": colleague}
        return {**about, **said, "id": f"{about['session_id']}/demonstration"}


def _resolved(session: str, value: float, source: dict[str, str], what: str) -> dict[str, Any]:
    return {"session_id": session, "name": "resolved", "value": value, "source": source, "id": f"{session}/{what}"}
