"""OpenAI's legacy text completions: a prompt in, text out."""

from __future__ import annotations

from typing import Any

from services.proxy.completion import Choice, Completion
from services.proxy.dialects.base import Assembler, Message, Place, WrongRequest, dicts
from services.proxy.dialects.naming import named
from services.proxy.dialects.openai import OpenAIDialect
from services.proxy.sse import DONE, ServerSentEvent

PROMPT_PART = "x.openai.prompt"
"""A prompt that is not one text: several, or token ids."""


class Completions(OpenAIDialect):
    name = "openai.completions"
    path = "/completions"
    not_params = frozenset({"prompt", "model", "stream", "stream_options"})
    content_field = "prompt"

    def check(self, request: dict[str, Any]) -> None:
        if not isinstance(request.get("prompt"), str | list):
            raise WrongRequest("'prompt' must be a text or an array.", "prompt")

    def conversation(self, request: dict[str, Any]) -> list[Message]:
        prompt = request.get("prompt")
        if isinstance(prompt, str):
            return [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
        return [{"role": "user", "parts": [{"type": PROMPT_PART, "content": prompt}]}]

    def answer(self, choice: Choice) -> Message:
        message: Message = {
            "role": "assistant",
            "parts": [{"type": "text", "content": choice.message.get("text", "")}],
        }
        if choice.finish_reason is not None:
            message["finish_reason"] = choice.finish_reason
        return message

    def whole(self, body: dict[str, Any]) -> Completion | None:
        if not isinstance(body.get("choices"), list):
            return None
        assembler = CompletionsAssembler()
        assembler.add(body)
        assembler.end()
        return assembler.completion

    def assembler(self) -> CompletionsAssembler:
        return CompletionsAssembler()

    def system_end(self, request: dict[str, Any]) -> Place | None:
        """A text completion has no system instructions: they go before the prompt."""
        return Place(("prompt",), "head") if isinstance(request.get("prompt"), str) else None


class CompletionsAssembler(Assembler):
    """Adds up `text_completion` objects; a whole answer is one of them."""

    def ends(self, event: ServerSentEvent, chunk: dict[str, Any] | None) -> bool:
        return event.data == DONE

    def add(self, chunk: dict[str, Any]) -> None:
        completion = self._completion
        completion.id = named(chunk.get("id")) or completion.id
        completion.model = named(chunk.get("model")) or completion.model
        if isinstance(chunk.get("usage"), dict):
            completion.usage = chunk["usage"]
        error = chunk.get("error")
        if error:
            completion.error = error if isinstance(error, dict) else {"message": str(error)}
        for position, raw in enumerate(dicts(chunk.get("choices"))):
            choice = completion.choice(raw["index"] if isinstance(raw.get("index"), int) else position)
            if isinstance(raw.get("text"), str):
                self._texts.add(choice.message, "text", raw["text"])
            if raw.get("finish_reason") is not None:
                choice.finish_reason = str(raw["finish_reason"])
