"""Environments replay may act in: sandboxed, stateful, cloneable worlds behind Gymnasium's interface."""

from evaluators.environments.base import Environment, UnsafeEnvironment, require_sandboxed
from evaluators.environments.registry import UnknownEnvironment, load, names

__all__ = ["Environment", "UnknownEnvironment", "UnsafeEnvironment", "load", "names", "require_sandboxed"]
