"""Any OpenAI-compatible endpoint as a judge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable

from evaluators.judges.judging import Ask, NoAnswer
from evoplane.settings import Judge

_RETRIES = 2


class JudgeError(Exception):
    """The judge is not configured; the message names the setting."""


def endpoint(config: Judge) -> Ask:
    """The configured judge, at most `concurrency` questions at once; raises `JudgeError`."""
    from openai import AsyncOpenAI, OpenAIError  # half a second, and only judging needs it

    if not config.url or not config.model:
        raise JudgeError("no judge is configured: set judge.url and judge.model")
    key = os.environ.get(config.key_env, "") if config.key_env else "none"
    if not key:
        raise JudgeError(f"the judge's key is missing: set the environment variable {config.key_env}")
    client = AsyncOpenAI(base_url=config.url, api_key=key, timeout=config.timeout_s, max_retries=_RETRIES)
    slots = asyncio.Semaphore(config.concurrency)

    async def answer(messages: list[dict[str, str]], seed: int) -> str:
        async with slots:
            try:
                reply = await client.chat.completions.create(
                    model=config.model,
                    messages=messages,  # type: ignore[arg-type]
                    temperature=config.temperature,
                    seed=seed,
                    max_tokens=config.max_tokens,
                )
            except OpenAIError as error:
                raise NoAnswer(str(error)) from error
        return reply.choices[0].message.content or "" if reply.choices else ""

    def ask(messages: list[dict[str, str]], seed: int) -> Awaitable[str]:
        return answer(messages, seed)

    return ask
