"""The field cases run against a real gateway with a scripted upstream."""

from tests.gateway.conftest import running, upstream

__all__ = ["running", "upstream"]
