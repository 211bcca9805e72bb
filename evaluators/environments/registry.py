"""Finding an environment by name: the deployment's own (setting `replay.environments`), installed ones, ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def names(configured: Mapping[str, str] | None = None) -> list[str]:
    """All environments that can be named, sorted."""
    return sorted({*(configured or {}), *(e.name for e in entry_points(group=GROUP)), *_OURS})


def load(name: str, configured: Mapping[str, str] | None = None, **options: Any) -> Environment:
    """A new environment by name, not yet reset; `options` go to whoever makes it.

    `configured` maps names to `module:callable` and goes before entry points, which go before ours. Raises
    `UnknownEnvironment`, and `UnsafeEnvironment` for one that is not sandboxed.
    """
    environment = _factory(name, configured or {})(**options)
    if not isinstance(environment, Environment):
        raise UnknownEnvironment(f"environment {name!r} lacks one of reset, step, state, clone")
    require_sandboxed(environment)
    return environment


def _factory(name: str, configured: Mapping[str, str]) -> Callable[..., Any]:
    target = configured.get(name)
    if target is None:
        for found in entry_points(group=GROUP, name=name):
            return found.load()
        target = _OURS.get(name)
    if target is None:
        raise UnknownEnvironment(f"no environment {name!r}; known: {', '.join(names(configured))}")
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownEnvironment(f"environment {name!r} ({target}) can't be imported: {error}") from error
