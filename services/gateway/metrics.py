"""What Prometheus reads from a gateway (text format 0.0.4).

Labels are names an operator gave (agent, version) or a small fixed set (role, status, route): nothing a client sends
becomes a label, so the number of series is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from registry.pointers import Route
from services.gateway.traces_out import Counts
from services.proxy.tenant_writer import StoreCounters
from services.router.shadow import ShadowMirror

_TOKENS = (("input", "prompt_tokens", "input_tokens"), ("output", "completion_tokens", "output_tokens"))
"""Directions, and what dialects call them."""
_STATES = ("ok", "spooling", "refusing")
OVERHEAD_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the histogram of time spent in the gateway."""


@dataclass
class Metrics:
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""
    calls: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """Model calls by agent, version, role and the status of their event."""
    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By agent, version and direction (input, output), as far as providers counted."""
    in_flight: int = 0
    overhead: list[int] = field(default_factory=lambda: [0] * (len(OVERHEAD_S) + 1))
    """Replies by the bucket of what the gateway added."""
    overhead_seconds: float = 0.0

    def took(self, seconds: float) -> None:
        """A reply on which the gateway spent so long."""
        self.overhead[bisect_left(OVERHEAD_S, seconds)] += 1
        self.overhead_seconds += seconds

    def called(self, agent: str, version: str, role: str, status: str, usage: Mapping[str, object] | None) -> None:
        """A model call that has ended."""
        self.calls[agent, version, role, status] += 1
        if usage is None:
            return
        for direction, name, other in _TOKENS:
            count = usage.get(name)
            if not isinstance(count, int):
                count = usage.get(other)
            if isinstance(count, int) and count > 0:
                self.tokens[agent, version, direction] += count

    def render(
        self,
        counters: StoreCounters,
        shadow: ShadowMirror,
        sessions: int,
        routes: Mapping[str, Route],
        control_age_s: float,
        traces: Counts,
    ) -> str:
        lines = [
            *_family("responses_total", "counter", "HTTP responses by route and status."),
            *(f'evoplane_responses_total{{route="{r}",status="{s}"}} {n}' for (r, s), n in self.responses.items()),
            *_family("model_calls_total", "counter", "Model calls by agent, version, role and how they ended."),
            *(
                f'evoplane_model_calls_total{{agent="{a}",version="{v}",role="{r}",status="{s}"}} {n}'
                for (a, v, r, s), n in self.calls.items()
            ),
            *_family("tokens_total", "counter", "Tokens that providers counted."),
            *(
                f'evoplane_tokens_total{{agent="{a}",version="{v}",direction="{d}"}} {n}'
                for (a, v, d), n in self.tokens.items()
            ),
            *_one("requests_in_flight", "gauge", "Requests being served now.", self.in_flight),
            *_family("overhead_seconds", "histogram", "Time a reply spent in the gateway, the upstream's not counted."),
            *self._histogram(),
            *_one("sessions", "gauge", "Sessions in memory.", sessions),
            *_family("route", "gauge", "1 for the version that each of an agent's pointers names."),
            *(
                f'evoplane_route{{agent="{agent}",pointer="{name}",version="{label}"}} 1'
                for agent, route in routes.items()
                for name in ("champion", "canary", "shadow", "previous")
                if (label := getattr(route, name)) is not None
            ),
            *_family("canary_weight", "gauge", "Share of sessions that a canary gets."),
            *(
                f'evoplane_canary_weight{{agent="{agent}",version="{route.canary}"}} {route.canary_weight}'
                for agent, route in routes.items()
                if route.canary is not None
            ),
            *_one(
                "control_age_seconds", "gauge", "Since keys and pointers were last looked at.", f"{control_age_s:.3f}"
            ),
            *_one("shadow_done_total", "counter", "Mirrored requests that were answered.", shadow.done),
            *_one("shadow_dropped_total", "counter", "Mirrored requests for which there was no room.", shadow.dropped),
            *_one("shadow_calls_answered_total", "counter", "A shadow's calls the tape answered.", shadow.answered),
            *_one("shadow_calls_refused_total", "counter", "A shadow's calls that nothing ran.", shadow.refused),
            *_one("traces_taken_total", "counter", "Trajectories that the collector took.", traces.taken),
            *_one("traces_refused_total", "counter", "Trajectories that the collector will not take.", traces.refused),
            *_one("store_jobs_total", "counter", "Exchanges given to the event log.", counters.jobs),
            *_one("store_commits_total", "counter", "Commits of the event log.", counters.commits),
            *_one("store_commit_seconds_total", "counter", "Time in commits.", f"{counters.commit_seconds:.6f}"),
            *_one("store_journaled_total", "counter", "Exchanges safe before they had a place.", counters.journaled),
            *_one("store_spooled_total", "counter", "Exchanges that went to the spool first.", counters.spooled),
            *_one("store_refused_total", "counter", "Exchanges that nothing could make durable.", counters.refused),
            *_one("store_writer_restarts_total", "counter", "Times its process was replaced.", counters.restarts),
            *_one("store_spool_bytes", "gauge", "What waits in the spool.", counters.spool_bytes),
            *_family("store_state", "gauge", "1 for the state the event log is in: ok, spooling, refusing."),
            *(f'evoplane_store_state{{state="{name}"}} {int(name == counters.state)}' for name in _STATES),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*OVERHEAD_S, "+Inf"), self.overhead, strict=True):
            seen += count
            yield f'evoplane_overhead_seconds_bucket{{le="{bound}"}} {seen}'
        yield f"evoplane_overhead_seconds_sum {self.overhead_seconds:.6f}"
        yield f"evoplane_overhead_seconds_count {seen}"


def _family(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP evoplane_{name} {help}", f"# TYPE evoplane_{name} {kind}"


def _one(name: str, kind: str, help: str, value: object) -> tuple[str, str, str]:
    return (*_family(name, kind, help), f"evoplane_{name} {value}")
