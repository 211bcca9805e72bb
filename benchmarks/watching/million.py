"""The monitor's computation over synthetic events: records to cases, triggers, drift, statistics of the window.

Run in a process of its own, `python -m benchmarks.watching.million 1000000`, so that its largest resident memory is
its own. Records are ATDP events as the log gives them; making and reading them is not the monitor's work and is timed
apart.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from typing import Any

import numpy as np

from atdp import messages
from evaluators import watching
from evaluators.cases import Case, cases_of
from evaluators.statistics import summarise
from evaluators.watching import Memo
from evoplane.settings import Settings

EVENTS = 10
"""Of one trajectory: three requests, each with a call, its result and an answer, and the judgement."""
_LOOK = 1000
"""Trajectories between two looks."""
_TOOLS = ("track_order", "cancel_order", "find_product")
_WORDS = ("where", "is", "my", "order", "cancel", "the", "one", "from", "monday", "refund", "for", "this", "thanks")


def measure(events: int) -> dict[str, float]:
    """Seconds of computation, and the process's largest resident memory."""
    config = Settings().monitor
    rng = np.random.default_rng(5)
    memo = Memo()
    window: deque[list[Case]] = deque(maxlen=config.window)
    spent = 0.0
    for first in range(0, events // EVENTS, _LOOK):
        count = min(_LOOK, events // EVENTS - first)
        texts = [json.dumps(_records(rng, first + i)) for i in range(count)]
        begun = time.process_time()
        decoded = [json.loads(text) for text in texts]
        begun += time.process_time() - begun
        judged = [cases_of(records[0]["tenant_id"], records, lambda _: []) for records in decoded]
        watching.take(memo, "1", judged, config)
        found = watching.seen(memo, config)
        window.extend(judged)
        summarise(
            [case for members in window for case in members],
            target=config.target_success,
            min_outcomes=config.min_outcomes,
            alarms=[found.cause[1]] if found.cause else [],
        )
        spent += time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"events": events, "seconds": round(spent, 2), "peak_rss_mib": round(peak)}


def _records(rng: np.random.Generator, number: int) -> list[dict[str, Any]]:
    id = f"tr_{number:08d}"
    tenant = ("northwind", "lumen", "acme")[number % 3]
    out: list[dict[str, Any]] = [
        {"record": "trajectory", "trajectory_id": id, "tenant_id": tenant, "agent": {"name": "support"}, "seq": 0}
    ]
    at = f"2026-01-{1 + number // 86400 % 28:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    for turn in range(3):
        words = [_WORDS[int(i)] for i in rng.integers(0, len(_WORDS), int(rng.integers(3, 12)))]
        asked = {"role": "user", "content": " ".join(words)}
        tool, order = _TOOLS[int(rng.integers(0, 3))], json.dumps({"order": int(rng.integers(0, 999))})
        function = {"name": tool, "arguments": order}
        answered = {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}
        result = {"role": "tool", "tool_call_id": f"c{turn}", "content": "done"}
        status = "ok" if rng.random() < 0.95 else "error"
        decision = f"ev_{number}_{turn}a"
        out.append(_call(rng, id, at, decision, [asked], answered))
        out.append({**_event(id, at, f"ev_{number}_{turn}b", "tool_call"), "a": {"name": tool, "arguments": {}},
                    "y": {"status": status, "result": "done"}, "parent_id": decision})  # fmt: skip
        done = {"role": "assistant", "content": "Done."}
        out.append(_call(rng, id, at, f"ev_{number}_{turn}c", [asked, answered, result], done))
    out.append({"record": "annotation", "id": f"an_{number}", "trajectory_id": id, "kind": "reward", "name": "resolved",
                "targets": [{"trajectory_id": id}], "source": {"kind": "environment"}, "time": at,
                "value": float(rng.random() < 0.93), "seq": EVENTS})  # fmt: skip
    return out


def _call(
    rng: np.random.Generator, trajectory: str, at: str, id: str, asked: list[dict[str, Any]], answered: dict[str, Any]
) -> dict[str, Any]:
    usage = {"input_tokens": int(rng.integers(200, 600)), "output_tokens": int(rng.integers(5, 90))}
    tags = {"agent": "support", "agent_version": "1", "role": "champion", "purpose": "serve"}
    return {**_event(trajectory, at, id, "llm_call"), "ctx": "ctx_1", "duration_ms": float(rng.gamma(2, 200)),
            "o": {"messages": [messages.from_openai(m) for m in asked]},
            "a": {"messages": [messages.from_openai(answered)], "params": {}}, "y": {"status": "ok"},
            "m": {"tags": tags, "usage": usage}}  # fmt: skip


def _event(trajectory: str, at: str, id: str, kind: str) -> dict[str, Any]:
    return {"record": "event", "kind": kind, "id": id, "trajectory_id": trajectory, "time": at}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
