"""Common random numbers: champion and candidates draw the same sampling seed for the same case and repeat.

What chance does to a decision then falls out of their difference as far as their distributions agree
(Glasserman & Yao 1992, "Some guidelines and guarantees for common random numbers").
"""

from __future__ import annotations

import hashlib


def seed_of(case_id: str, repeat: int = 0) -> int:
    """The seed, below 2^31, that everybody who re-makes this case for the `repeat`-th time samples with."""
    return int.from_bytes(hashlib.sha256(f"{case_id}\0{repeat}".encode()).digest()[:4], "big") >> 1
