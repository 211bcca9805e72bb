"""Simulated agents: outcomes of sessions, and the rows that drift looks at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Outcomes = NDArray[np.float64]

TENANTS = ("northwind", "lumen")


def successes(rng: np.random.Generator, lives: int, sessions: int, success: float) -> Outcomes:
    """0 or 1 by (life, session)."""
    return (rng.random((lives, sessions)) < success).astype(float)


def rows(rng: np.random.Generator, outcomes: Outcomes, topics: int = 6) -> dict[str, list[Any]]:
    """One life's rows, with `outcomes` as their success; every other column is as it always is."""
    n = len(outcomes)
    succeeded = outcomes > 0.5
    return {
        "latency_ms": list(rng.gamma(2.0, 200.0, n)),
        "input_tokens": [float(x) for x in rng.poisson(400, n)],
        "output_tokens": [float(x) for x in rng.negative_binomial(3, 0.05, n)],
        "request_words": [float(x) for x in rng.poisson(9, n) + 1],
        "tenant": [str(x) for x in rng.choice(TENANTS, n, p=[0.6, 0.4])],
        "action": [str(x) for x in rng.choice(["answer", "track", "cancel", "refund"], n, p=[0.5, 0.25, 0.15, 0.1])],
        "success": [str(bool(x)) for x in succeeded],
        "corrected": [str(bool(x)) for x in (~succeeded & (rng.random(n) < 0.5))],
        "topic": [f"topic {x}" for x in rng.integers(0, topics, n)],
    }
