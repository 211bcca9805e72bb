"""What an environment is to replay.

The calls are Gymnasium's (`reset`, `step` with its five results) with OpenEnv's `state`, so that an environment written
for either needs little, and one that imports nothing of ours can have them too. An action is a tool call,
`{"name": str, "arguments": object}`; an observation is the text the model reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


class UnsafeEnvironment(Exception):
    """The environment does not promise to keep what it does to itself; replay may not act in it."""


@runtime_checkable
class Environment(Protocol):
    """A world in which tool calls can be tried.

    Optional: `effects: Mapping[str, str]` says what a tool may change (`none | read | idempotent_write | write |
    irreversible`), and `judge(answer: str) -> (bool | None, Sequence[str])` whether the task is done once the agent has
    answered (None: it can't say), and what was done that must not be.
    """

    sandboxed: bool
    """True: nothing outside this object is changed, whatever is called."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """A fresh world; `options["task"]` is the recorded task's id. Gives the first observation and what is known."""
        ...

    def step(self, action: Mapping[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """(observation, reward, terminated, truncated, info); `info["status"]` is `error` for a call that failed."""
        ...

    def state(self) -> Any:
        """The world as JSON: equal states behave alike."""
        ...

    def clone(self) -> Environment:
        """An independent copy: what is done in one is not seen in the other."""
        ...


def require_sandboxed(environment: Environment) -> None:
    """Raises `UnsafeEnvironment` unless the environment says that it is sandboxed."""
    if getattr(environment, "sandboxed", None) is not True:
        kind = type(environment).__name__
        raise UnsafeEnvironment(f"{kind} does not say `sandboxed = True`; replay never acts in the world outside")
