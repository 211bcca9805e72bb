"""An answer as far as it came, whatever dialect it came in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from services.proxy.lenient import mended


@dataclass(repr=False)  # what was said has no place in a log
class Choice:
    """One of the `n` answers."""

    index: int
    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant"})
    """In the dialect's own form."""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(repr=False)
class Completion:
    """Everything an upstream said in one answer. Nothing is invented: what was not there is absent."""

    choices: dict[int, Choice] = field(default_factory=dict)
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    """As the upstream reported it; None when it did not."""
    prompt_token_ids: list[int] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    """Ids of what the provider keeps beside the answer, as it tells them: a conversation, a container, files."""
    error: dict[str, Any] | None = None
    """An error the upstream put into the stream or into a 200."""
    done: bool = False
    """Did a terminal event arrive?"""

    @property
    def finished(self) -> bool:
        """Did the upstream say that the answer is whole?"""
        ended = bool(self.choices) and all(c.finish_reason is not None for c in self.choices.values())
        return self.error is None and ended

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice(index))

    def mend(self) -> None:
        """Make of it what can be stored, where it was read of odd JSON."""
        self.id, self.model, self.state = mended(self.id), mended(self.model), mended(self.state)
        self.usage, self.error = mended(self.usage), mended(self.error)
        for choice in self.choices.values():
            choice.message, choice.finish_reason = mended(choice.message), mended(choice.finish_reason)

    def ordered(self) -> list[Choice]:
        return [self.choices[index] for index in sorted(self.choices)]
