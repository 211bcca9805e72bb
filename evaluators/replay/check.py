"""Does a recording replay? Each recorded call made again in an environment, and compared with what was recorded.

An event's class is a claim about (event, context); this confirms or refutes it, for one environment.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluators.environments.base import Environment, require_sandboxed
from evaluators.replay.classes import Klass
from evaluators.replay.recording import Recording


class Mismatch(msgspec.Struct, frozen=True):
    event_id: str
    tool: str
    recorded: str
    replayed: str


class Check(msgspec.Struct, frozen=True):
    calls: int
    mismatches: Sequence[Mismatch]

    @property
    def klass(self) -> Klass:
        """deterministic when every call came to the same; an environment that differs anywhere is approximate."""
        return "approximate" if self.mismatches else "deterministic"


def check(recording: Recording, environment: Environment) -> Check:
    """Make the recorded calls in order; `environment` is reset to where the recording began, and is changed."""
    require_sandboxed(environment)
    mismatches = []
    for action in recording.actions:
        text, _, _, _, _ = environment.step({"name": action.tool, "arguments": action.arguments})
        if text != action.result:
            mismatches.append(Mismatch(action.event_id, action.tool, action.result, text))
    return Check(len(recording.actions), mismatches)
