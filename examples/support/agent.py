"""A customer-support agent as people write them: the plain OpenAI SDK, tools, a short loop.

It knows nothing of Evoplane: it is given a client, and the client was given a base URL and a key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage

from examples.support.shop import LOOK_UPS, TOOLS, Shop


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
        """Serve one customer; raises the SDK's errors.

        What an action did is told in the tool's own words; what a look-up found, the model phrases.
        """
        messages: list[Any] = [{"role": "system", "content": self._system}, {"role": "user", "content": text}]
        decision = await self._ask(messages, tools=TOOLS, max_tokens=48)
        answer = Answer(decision.content or "")
        if not decision.tool_calls:
            return answer
        messages.append(decision.model_dump(exclude_none=True))
        for call in decision.tool_calls:
            if call.type != "function":
                continue
            arguments, result = self._execute(call.function.name, call.function.arguments)
            answer.calls.append((call.function.name, arguments))
            answer.text = result
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if any(name in LOOK_UPS for name, _ in answer.calls):
            phrased = (await self._ask(messages, max_tokens=16)).content or ""
            if phrased and not phrased.startswith("<tool_call>"):  # a small model may call again instead of telling
                answer.text = phrased
        return answer

    async def _ask(self, messages: list[Any], **options: Any) -> ChatCompletionMessage:
        reply = await self._client.chat.completions.create(
            model=self._model, messages=messages, temperature=0, **options
        )
        message: ChatCompletionMessage = reply.choices[0].message
        return message

    def _execute(self, name: str, raw: str) -> tuple[Any, str]:
        try:
            arguments = json.loads(raw)
            return arguments, self._shop.call(name, arguments)
        except ValueError as error:
            return raw, f"error: {error}"
