"""Fixtures of the proxy's store tests serve here too."""

from tests.proxy.conftest import backend, postgres_admin

__all__ = ["backend", "postgres_admin"]
