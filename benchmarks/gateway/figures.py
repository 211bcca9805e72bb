"""From what was measured to named figures, and to the bars they must meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from statistics import median
from typing import TypeVar

from benchmarks.gateway.load import percentile
from benchmarks.gateway.rounds import CONCURRENCIES, FRONTIER_BOUNDS_MS, FRONTIER_STEPS, PEERS, STREAMED, Results

Figures = dict[str, float | None]
T = TypeVar("T")

PREFIXES = {"async": "", "durable": "durable_", "mlflow": "mlflow_", "portkey": "portkey_"}
"""What a target's figures have in front; all of them are differences to the bare upstream of the same round."""

_ANSWERED = 0.99
_COMPUTED_AT = 16
"""Clients at once in the phases whose computing time is told: many, so that the clock's ticks don't matter."""
_NS_PER_MS = 1e6


def figures(results: Results) -> Figures:
    """Every figure; None where a target could not be measured."""
    found: Figures = {"fsync_p50_ms": _rounded(results.fsync_ms)}
    for concurrency in CONCURRENCIES:
        direct = results.phases["direct", concurrency]
        found[f"direct_p50_ms_c{concurrency}"] = _rounded([phase.percentile_ms(50) for phase in direct])
        found[f"direct_p99_ms_c{concurrency}"] = _rounded([phase.percentile_ms(99) for phase in direct])
    for target, prefix in PREFIXES.items():
        for concurrency in CONCURRENCIES:
            phases = results.phases[target, concurrency]
            direct = results.phases["direct", concurrency]
            for percent in (50, 99):
                added = _differences(phases, direct, methodcaller("percentile_ms", percent))
                found[f"{prefix}added_p{percent}_ms_c{concurrency}"] = _rounded(added)
            found[f"{prefix}rps_c{concurrency}"] = _rounded([phase.rps for phase in phases], 0)
        computed = [1000 * phase.cpu_s / len(phase.ns) for phase in results.phases[target, _COMPUTED_AT]]
        found[f"{prefix}cpu_ms_per_request"] = _rounded(computed)
        found |= _streamed(results, target, prefix)
        found |= _frontier(results, target, prefix)
    return found


def _streamed(results: Results, target: str, prefix: str) -> Figures:
    found: Figures = {}
    for concurrency in STREAMED if target not in PEERS else STREAMED[1:]:
        suffix = "" if concurrency == 1 else f"_c{concurrency}"
        phases, direct = results.streams[target, concurrency], results.streams["direct", concurrency]
        ttft = _differences(phases, direct, lambda streams: percentile(streams.ttft_ns, 50) / _NS_PER_MS)
        gaps = _differences(phases, direct, lambda streams: percentile(streams.gaps_ns, 99) / _NS_PER_MS)
        found[f"{prefix}added_ttft_p50_ms{suffix}"] = _rounded(ttft)
        found[f"{prefix}added_frame_gap_p99_ms{suffix}"] = _rounded(gaps)
    return found


def _frontier(results: Results, target: str, prefix: str) -> Figures:
    """The highest rate at which 99% were answered within a bound, in at least one of the passes."""
    found: Figures = {}
    measured = any(results.frontier[target, step] for step in FRONTIER_STEPS)
    for bound in FRONTIER_BOUNDS_MS:
        rates = [
            phase.rps
            for step in FRONTIER_STEPS
            for phase in results.frontier[target, step]
            if phase.share_within(bound) >= _ANSWERED
        ]
        found[f"{prefix}frontier_rps_{bound}ms"] = round(max(rates, default=0.0)) if measured else None
    return found


def _differences(measured: list[T], direct: list[T], of: Callable[[T], float]) -> list[float]:
    """A round each; a target that failed on the way has fewer."""
    return [of(ours) - of(theirs) for ours, theirs in zip(measured, direct, strict=False)]


def _rounded(values: list[float], digits: int = 3) -> float | None:
    """The median over the rounds."""
    return round(median(values), digits) if values else None


@dataclass(frozen=True)
class Bar:
    """A figure and what it may be at most."""

    name: str
    value: float | None
    bound: float | None
    """None: the other side of the comparison was not measured."""

    @property
    def met(self) -> bool | None:
        return None if self.value is None or self.bound is None else self.value <= self.bound


def bars(found: Figures) -> list[Bar]:
    """What the project promises about speed."""

    def at_most(name: str, bound: float | None) -> Bar:
        return Bar(name, found[name], bound)

    fsync, asynchronous = found["fsync_p50_ms"], found["frontier_rps_50ms"]
    durable = found["durable_frontier_rps_50ms"]
    lost = None if asynchronous is None or durable is None or asynchronous == 0 else 1 - durable / asynchronous
    return [
        at_most("added_p50_ms_c1", 1.5),
        at_most("added_p99_ms_c1", 5.0),
        *(
            Bar(f"{name} below {peer}'s", found[name], found[f"{peer}_{name}"])
            for name in ("added_p50_ms_c16", "added_p99_ms_c16")
            for peer in ("mlflow", "portkey")
        ),
        at_most("added_ttft_p50_ms", 1.5),
        at_most("durable_added_ttft_p50_ms", 1.5),
        at_most("durable_added_p50_ms_c1", None if fsync is None else round(fsync + 1.5, 3)),
        Bar("share of frontier_rps_50ms lost when durable", None if lost is None else round(lost, 3), 0.2),
    ]
