"""Counters in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.proxy.store import EventStore
from services.router.shadow import ShadowMirror

_STATES = ("ok", "spooling", "refusing")


@dataclass
class Metrics:
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""
    endings: Counter[str] = field(default_factory=Counter)
    """Model calls by the status of their event."""
    in_flight: int = 0
    overhead_seconds: float = 0.0
    overhead_count: int = 0

    def render(self, store: EventStore, shadow: ShadowMirror, sessions: int) -> str:
        counters = store.counters
        lines = [
            *(f'evoplane_responses_total{{route="{r}",status="{s}"}} {n}' for (r, s), n in self.responses.items()),
            *(f'evoplane_model_calls_total{{status="{status}"}} {n}' for status, n in self.endings.items()),
            f"evoplane_requests_in_flight {self.in_flight}",
            f"evoplane_overhead_seconds_sum {self.overhead_seconds:.6f}",
            f"evoplane_overhead_seconds_count {self.overhead_count}",
            f"evoplane_sessions {sessions}",
            f"evoplane_shadow_done_total {shadow.done}",
            f"evoplane_shadow_dropped_total {shadow.dropped}",
            f"evoplane_store_jobs_total {counters.jobs}",
            f"evoplane_store_commits_total {counters.commits}",
            f"evoplane_store_commit_seconds_total {counters.commit_seconds:.6f}",
            f"evoplane_store_spooled_total {counters.spooled}",
            f"evoplane_store_refused_total {counters.refused}",
            f"evoplane_store_spool_bytes {counters.spool_bytes}",
            *(f'evoplane_store_state{{state="{name}"}} {int(name == counters.state)}' for name in _STATES),
        ]
        return "\n".join(lines) + "\n"
