"""The shipped configuration file says what the code says."""

from __future__ import annotations

from pathlib import Path

from evoplane.settings import Settings, read_settings
from evoplane.stack.settings_file import render

SHIPPED = Path(__file__).parents[2] / "evoplane.toml"


def test_the_shipped_file_is_not_stale() -> None:
    assert SHIPPED.read_text() == render(), "run: python -m evoplane.stack.settings_file > evoplane.toml"


def test_the_shipped_file_holds_the_defaults() -> None:
    assert read_settings(SHIPPED, {}) == Settings()
