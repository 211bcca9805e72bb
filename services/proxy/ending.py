"""How an exchange with a model ended, in the words of an event: status, and the claim for replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from atdp.records import Error, Outcome, Replay, Status
from services.proxy.completion import Choice, Completion


@dataclass(repr=False)  # what was said has no place in a log
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


def claim(params: dict[str, Any]) -> Replay:
    """Greedy and seeded decoding repeat; anything else is one sample of many."""
    seed = params.get("seed")
    repeats = params.get("temperature") == 0 or isinstance(seed, int)
    return Replay(
        class_="deterministic" if repeats else "approximate",
        boundary="inside",
        effect="none",
        # a seed beyond what JSON holds exactly keeps its digits in the params
        seed=seed if isinstance(seed, int) and abs(seed) < 2**53 else UNSET,
        stub=True,
    )
