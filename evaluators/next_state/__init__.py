"""The next-state classifier: what a user's next message says about the answer before it (docs/rewards.md).

Trained from labelled replies on sentence embeddings; calibrated; silent below its confidence.
"""

from __future__ import annotations

from typing import Literal

Label = Literal["positive", "negative", "neutral"]
LABELS: tuple[Label, ...] = ("negative", "neutral", "positive")
"""In the order of the model's probabilities."""
