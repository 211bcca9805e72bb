"""Clients that ask through the public gateway without pause, and keep what they were told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, OpenAIError

_ASKS = ("Tell me about the number {}.", "What comes after {}?", "Write a line about {} birds.", "Count down from {}.")


@dataclass
class Traffic:
    """`total` chat requests by `clients` at once, half of them streamed. What failed is kept with its reason."""

    base_url: str
    key: str
    model: str
    total: int
    clients: int
    max_tokens: int
    events: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.events) + len(self.failed)

    async def run(self) -> None:
        async with AsyncOpenAI(base_url=self.base_url, api_key=self.key, max_retries=0, timeout=300) as client:
            numbers = iter(range(self.total))
            await asyncio.gather(*(self._client(client, numbers) for _ in range(self.clients)))

    async def reached(self, share: float) -> None:
        """Until this share of the requests has been answered."""
        while self.done < share * self.total:  # noqa: ASYNC110 - what it waits for are two lengths
            await asyncio.sleep(0.02)

    async def _client(self, client: AsyncOpenAI, numbers: Any) -> None:
        for number in numbers:
            try:
                self.events.append(await self._ask(client, number))
            except (OpenAIError, ValueError) as error:
                self.failed.append(f"request {number}: {error}")

    async def _ask(self, client: AsyncOpenAI, number: int) -> str:
        """One request, read to its end; gives the event's id."""
        text = _ASKS[number % len(_ASKS)].format(number)
        asked: Any = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "temperature": 1.0,
            "seed": number,
        }
        if number % 2:
            raw = await client.chat.completions.with_raw_response.create(**asked)
            if not raw.parse().choices[0].finish_reason:
                raise ValueError("the answer has no end")
            return str(raw.headers["x-evoplane-event-id"])
        raw = await client.chat.completions.with_raw_response.create(stream=True, **asked)
        ended = False
        async for chunk in raw.parse():
            ended = ended or any(choice.finish_reason for choice in chunk.choices)
        if not ended:
            raise ValueError("the stream has no end")
        return str(raw.headers["x-evoplane-event-id"])
