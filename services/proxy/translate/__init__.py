"""Translations between dialects, two files each: the request there, the answer back."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects import MESSAGES, RESPONSES, Dialect
from services.proxy.translate.base import NotTranslatable, Translation, Translator
from services.proxy.translate.chat_to_messages import MessagesAnswer
from services.proxy.translate.chat_to_responses import ResponsesAnswer
from services.proxy.translate.messages_to_chat import chat_request as from_messages
from services.proxy.translate.responses_to_chat import chat_request as from_responses

__all__ = ["ENGINE_FIELDS", "NotTranslatable", "Translator", "translator"]

_TRANSLATIONS = {
    each.source.name: each
    for each in (
        Translation(MESSAGES, from_messages, MessagesAnswer),
        Translation(RESPONSES, from_responses, ResponsesAnswer),
    )
}

ENGINE_FIELDS = frozenset(
    {"top_k", "min_p", "repetition_penalty", "stop_token_ids", "min_tokens", "ignore_eos", "chat_template_kwargs"}
)
"""Fields that vLLM's chat takes besides OpenAI's."""


def translator(
    source: Dialect,
    asked: dict[str, Any],
    sent: dict[str, Any],
    *,
    model: str | None = None,
    also: frozenset[str] = frozenset(),
) -> Translator:
    """From `source` to chat; raises `NotTranslatable`. See `Translator` for the arguments, and `Translation` for
    `also`."""
    return Translator(_TRANSLATIONS[source.name], asked, sent, model, also)
