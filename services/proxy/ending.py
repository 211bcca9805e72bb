"""How an exchange with a model ended, in the words of an event: status, usage, and the claim for replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from atdp.records import Error, Outcome, Replay, Status, Usage
from services.proxy.assemble import Choice, Completion


@dataclass
class Ending:
    """How the exchange went."""

    status: Status
    completion: Completion = field(default_factory=Completion)
    error_type: str | None = None
    error_message: str | None = None
    ttft_ms: float | None = None
    ext: dict[str, Any] = field(default_factory=dict)


def outcome(ending: Ending, choices: list[Choice], retries: int) -> Outcome:
    """The event's `y`."""
    reason = choices[0].finish_reason if choices else None
    error: Error | UnsetType = UNSET
    if ending.error_type is not None:
        error = Error(type=ending.error_type, message=ending.error_message or "")
    return Outcome(
        status=ending.status, finish_reason=UNSET if reason is None else reason, error=error, retries=retries
    )


def usage(reported: dict[str, Any] | None) -> Usage | UnsetType:
    """What the upstream counted; absent, never zero, when it counted nothing."""
    if reported is None:
        return UNSET
    prompt = reported.get("prompt_tokens_details") or {}
    completion = reported.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=_count(reported.get("prompt_tokens")),
        output_tokens=_count(reported.get("completion_tokens")),
        cache_read_input_tokens=_count(prompt.get("cached_tokens")),
        reasoning_output_tokens=_count(completion.get("reasoning_tokens")),
    )


def _count(value: Any) -> int | UnsetType:
    return value if isinstance(value, int) else UNSET


def claim(params: dict[str, Any]) -> Replay:
    """Greedy and seeded decoding repeat; anything else is one sample of many."""
    seed = params.get("seed")
    repeats = params.get("temperature") == 0 or isinstance(seed, int)
    return Replay(
        class_="deterministic" if repeats else "approximate",
        boundary="inside",
        effect="none",
        seed=seed if isinstance(seed, int) else UNSET,
        stub=True,
    )
