"""Is a cluster more than what falls together by chance?

A cluster is compared with what failed among everything else: Fisher's exact test, one-sided, on (failed this way, or
not) × (work of its kind, or any other). Where there is no other work to compare with, with the failures that are
tolerated anyway (binomial test). Looking at many clusters is corrected by Holm's procedure (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Sequence


def concentration(failed: int, exposed: int, failed_elsewhere: int, elsewhere: int) -> float:
    """p-value of `failed` of `exposed` against `failed_elsewhere` of `elsewhere`."""
    from scipy.stats import fisher_exact

    table = [[failed, exposed - failed], [failed_elsewhere, elsewhere - failed_elsewhere]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def excess(failed: int, exposed: int, tolerated: float) -> float:
    """p-value of `failed` of `exposed` against a tolerated share of failures."""
    from scipy.stats import binomtest

    return float(binomtest(failed, exposed, tolerated, alternative="greater").pvalue) if exposed else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: reject those below alpha, and the chance of any false rejection is at most alpha."""
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for position, index in enumerate(ranked):
        running = max(running, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = running
    return adjusted
