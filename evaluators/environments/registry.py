"""Finding an environment: `module:callable`, or the name of an installed one or one of ours."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from evaluators.environments.base import Environment, require_sandboxed

GROUP = "evoplane.environments"
"""Entry points of this group name a callable that makes an environment."""

_OURS = {
    f"agentdojo-{suite}": f"evaluators.environments.agentdojo:{suite}"
    for suite in ("workspace", "travel", "banking", "slack")
}


class UnknownEnvironment(LookupError):
    """No environment of this name, or it can't be imported; the message says what to do."""


def names() -> list[str]:
    """All environments that have a name, sorted."""
    return sorted({*(e.name for e in entry_points(group=GROUP)), *_OURS})


def load(name: str, **options: Any) -> Environment:
    """A new environment, not yet reset; `options` go to whoever makes it.

    `name` is `module:callable`, or a name; an installed environment goes before one of ours. Raises
    `UnknownEnvironment`, and `UnsafeEnvironment` for one that is not sandboxed.
    """
    environment = _factory(name)(**options)
    if not isinstance(environment, Environment):
        raise UnknownEnvironment(f"environment {name!r} lacks one of reset, step, state, clone")
    require_sandboxed(environment)
    return environment


def _factory(name: str) -> Callable[..., Any]:
    for found in entry_points(group=GROUP, name=name):
        return found.load()
    target = name if ":" in name else _OURS.get(name)
    if target is None:
        raise UnknownEnvironment(f"no environment {name!r}; known: {', '.join(names())}, or module:callable")
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownEnvironment(f"environment {name!r} ({target}) can't be imported: {error}") from error
