"""A customer-support agent as people write them: the plain OpenAI SDK, tools, a short loop.

It knows nothing of Evoplane: it is given a client, and the client was given a base URL and a key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from examples.support.shop import TOOLS, Shop

MAX_STEPS = 2
"""One decision and, if it was a tool call, one sentence about its result."""


@dataclass
class Answer:
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """(tool, arguments) in order; arguments that are not JSON stay a string."""


class SupportAgent:
    def __init__(self, client: AsyncOpenAI, model: str, shop_name: str, shop: Shop):
        self._client = client
        self._model = model
        self._system = f"You are the support agent of {shop_name}."
        self._shop = shop

    async def answer(self, text: str) -> Answer:
        """Serve one customer; raises the SDK's errors."""
        tools: list[Any] = TOOLS
        messages: list[Any] = [{"role": "system", "content": self._system}, {"role": "user", "content": text}]
        answer = Answer()
        for _ in range(MAX_STEPS):
            reply = await self._client.chat.completions.create(
                model=self._model, messages=messages, tools=tools, temperature=0, max_tokens=48
            )
            message = reply.choices[0].message
            answer.text = message.content or ""
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                if call.type != "function":
                    continue
                arguments, result = self._execute(call.function.name, call.function.arguments)
                answer.calls.append((call.function.name, arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return answer

    def _execute(self, name: str, raw: str) -> tuple[Any, str]:
        try:
            arguments = json.loads(raw)
            return arguments, self._shop.call(name, arguments)
        except ValueError as error:
            return raw, f"error: {error}"
