"""Whole leaves that are sealed or removed: token ids that would tell what was hidden, and reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.proxy.redaction.walk import stand_in

Seal = Callable[[Any, list[str]], dict[str, Any]]
"""(value, labels) → the stand-in for it."""

_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_LABELS = ["tokens"]
_GONE = ["tokens", "secret"]


def hide_tokens(record: dict[str, Any], seal: Seal, masked_now: bool, masked_before: bool) -> dict[str, Any]:
    """The event with its token ids and log-probabilities sealed.

    They are removed when they would tell a secret that was removed from the text: those of this exchange
    when it held one, and a whole prompt (not one that goes on from an earlier call's) when an earlier one did.
    """
    tokens = record.get("tokens")
    if tokens:
        record = {**record, "tokens": {k: _hidden(k, v, seal, masked_now, masked_before) for k, v in tokens.items()}}
    choices = record.get("ext", {}).get("choices")
    if choices:
        hidden = [
            {k: _hidden(k, v, seal, masked_now, masked_before) for k, v in choice.items()} if isinstance(choice, dict)
            else choice
            for choice in choices
        ]  # fmt: skip
        record = {**record, "ext": {**record["ext"], "choices": hidden}}
    return record


def _hidden(name: str, value: Any, seal: Seal, masked_now: bool, masked_before: bool) -> Any:
    if name not in _TOKENS or not value:
        return value
    goes_on = isinstance(value, dict) and "prefix" in value
    if masked_now or (masked_before and name == "prompt_token_ids" and not goes_on):
        return stand_in(_GONE)
    return seal(value, _LABELS)


def hide_reasoning(record: dict[str, Any], seal: Seal | None) -> tuple[dict[str, Any], bool]:
    """The event with the model's reasoning sealed, or removed when there is no `seal`; and was there any?"""
    hide = _Reasoning(seal)
    new = dict(record)
    for side in ("o", "a"):
        held = new.get(side)
        if isinstance(held, dict) and "messages" in held:
            new[side] = {**held, "messages": hide.messages(held["messages"])}
    state = new.get("h")
    if isinstance(state, dict) and state.get("reasoning") is not None:
        new["h"] = {**state, "reasoning": hide.leaf(state["reasoning"])}
    return (new, True) if hide.found else (record, False)


class _Reasoning:
    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal
        self.found = False

    def leaf(self, value: Any) -> Any:
        self.found = True
        return stand_in(["cot"]) if self._seal is None else self._seal(value, ["cot"])

    def messages(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v if k == "prefix" else self.messages(v) for k, v in value.items()}
        return [self._message(item) for item in value] if isinstance(value, list) else value

    def _message(self, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if isinstance(message.get("message"), dict):
            return {**message, "message": self._message(message["message"])}
        parts = message.get("parts")
        if not isinstance(parts, list) or not any(_is_reasoning(part) for part in parts):
            return message
        return {**message, "parts": [self._part(part) for part in parts]}

    def _part(self, part: Any) -> Any:
        if not _is_reasoning(part):
            return part
        return {k: v if k in ("type", "id", "name") else self.leaf(v) for k, v in part.items()}


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "reasoning"
