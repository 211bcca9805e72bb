"""The support desk: serves customers with the agent, and reports what came of it.

What a help-desk application does anyway: whether the ticket was resolved, what an unhappy customer
said, and what a colleague did instead are posted to `/v1/feedback`. The session a ticket belongs to
is read from the reply headers by a hook on the HTTP client, so the agent stays untouched.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

from examples.support.agent import Answer, SupportAgent
from examples.support.scenario import CHANGED_TOPIC, TENANTS, Request, fact_sentence, is_right, right_answer
from examples.support.shop import Shop

_CORRECTIONS = (
    "No. {fact}",
    "That's wrong. {fact}",
    "{fact} Your colleague told me so.",
    "I read something else: {fact}",
)

_replies: ContextVar[list[Reply]] = ContextVar("replies")


@dataclass(frozen=True)
class Reply:
    """One model call as the client saw it."""

    sent_at: float
    """UNIX seconds when the request left."""
    version: str
    session_id: str
    event_id: str


@dataclass(frozen=True)
class Ticket:
    """One served customer."""

    request: Request
    answer: Answer
    right: bool
    replies: tuple[Reply, ...]
    error: str | None = None

    @property
    def session_id(self) -> str:
        return self.replies[0].session_id if self.replies else ""

    @property
    def event_id(self) -> str:
        """The decision: the first model call of the session."""
        return self.replies[0].event_id if self.replies else ""


@dataclass
class Desk:
    """Customers of all shops, served side by side.

    Args:
        base_url: where the agent's client points, without `/v1`.
        keys: the key of each tenant.
        facts: what is true at each shop now (`scenario.facts_now`).
        report: whether outcomes are posted as feedback (held-out measurements don't).
    """

    base_url: str
    keys: dict[str, str]
    model: str
    facts: dict[str, dict[str, str]]
    report: bool = True
    concurrency: int = 16
    headers: dict[str, str] | None = None

    async def serve(
        self,
        requests: Iterable[Request],
        on_ticket: Callable[[Ticket], None] | None = None,
        until: Callable[[], bool] | None = None,
    ) -> list[Ticket]:
        """Serve the requests, or as many as come before `until` says enough; returns the tickets as closed."""
        tickets: list[Ticket] = []
        queue = iter(requests)
        async with httpx.AsyncClient(base_url=self.base_url, timeout=60) as feedback:
            clients = {tenant: self._client(key) for tenant, key in self.keys.items()}

            async def colleague() -> None:
                for request in queue:
                    if until is not None and until():
                        return
                    ticket = await self._serve_one(clients[request.tenant], request)
                    if self.report and ticket.error is None:
                        await self._report(feedback, ticket)
                    tickets.append(ticket)
                    if on_ticket is not None:
                        on_ticket(ticket)

            try:
                await asyncio.gather(*(colleague() for _ in range(self.concurrency)))
            finally:
                await asyncio.gather(*(client.close() for client in clients.values()))
        return tickets

    def _client(self, key: str) -> AsyncOpenAI:
        async def note_time(request: Any) -> None:
            request.extensions["sent_at"] = time.time()

        async def remember(response: Any) -> None:
            if (seen := _replies.get(None)) is not None and "x-evoplane-event-id" in response.headers:
                seen.append(
                    Reply(
                        sent_at=response.request.extensions["sent_at"],
                        version=response.headers["x-evoplane-agent-version"],
                        session_id=response.headers["x-evoplane-session-id"],
                        event_id=response.headers["x-evoplane-event-id"],
                    )
                )

        return AsyncOpenAI(
            base_url=f"{self.base_url}/v1",
            api_key=key,
            default_headers=self.headers,
            http_client=DefaultAsyncHttpxClient(event_hooks={"request": [note_time], "response": [remember]}),
        )

    async def _serve_one(self, client: AsyncOpenAI, request: Request) -> Ticket:
        replies: list[Reply] = []
        _replies.set(replies)
        agent = SupportAgent(client, self.model, TENANTS[request.tenant], Shop())
        answer, error = Answer(), None
        try:
            answer = await agent.answer(request.text)
        except OpenAIError as failure:
            error = f"{type(failure).__name__}: {failure}"
        right = error is None and is_right(request, self.facts, answer.text, answer.calls)
        return Ticket(request, answer, right, tuple(replies), error)

    async def _report(self, feedback: httpx.AsyncClient, ticket: Ticket) -> None:
        response = await feedback.post(
            "/v1/feedback",
            json=feedback_for(ticket, self.facts),
            headers={"authorization": f"Bearer {self.keys[ticket.request.tenant]}"},
        )
        response.raise_for_status()


def feedback_for(ticket: Ticket, facts: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """What the desk reports: the outcome always; of a failure, the customer's words or a colleague's action.

    A customer who was told an outdated fact says what is right. Everything else that failed is done
    by a colleague, and what the colleague did is the demonstration.
    """
    request = ticket.request
    outcome = {
        "session_id": ticket.session_id,
        "event_id": ticket.event_id,
        "name": "resolved",
        "value": int(ticket.right),
        "source": {"kind": "environment", "id": "helpdesk"},
        "id": f"{ticket.session_id}/resolved",
    }
    if ticket.right:
        return [outcome]
    told = {"session_id": ticket.session_id, "event_id": ticket.event_id}
    if request.topic == CHANGED_TOPIC:
        fact = fact_sentence(request.topic, request.expected_fact(facts))
        words = random.Random(request.id).choice(_CORRECTIONS).format(fact=fact)  # noqa: S311
        correction = {
            **told,
            "name": "user_correction",
            "value": -1,
            "explanation": words,
            "source": {"kind": "end_user"},
            "id": f"{ticket.session_id}/correction",
        }
        return [outcome, correction]
    demonstration = {
        **told,
        "name": "demonstration",
        "value": 1,
        "demonstration": as_message(right_answer(request, facts)),
        "source": {"kind": "human", "id": "colleague"},
        "id": f"{ticket.session_id}/demonstration",
    }
    return [outcome, demonstration]


def as_message(right: dict[str, Any]) -> dict[str, Any]:
    """The right answer as an OpenAI assistant message."""
    if "content" in right:
        return {"role": "assistant", "content": right["content"]}
    function = {"name": right["tool"], "arguments": json.dumps(right["arguments"])}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_demo", "type": "function", "function": function}],
    }
