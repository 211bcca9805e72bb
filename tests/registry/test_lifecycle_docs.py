"""`docs/delivery.md` shows the tables that the code obeys."""

from __future__ import annotations

from pathlib import Path

from registry.lifecycle import MACHINES

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"


def test_the_page_has_every_table_as_the_code_has_it() -> None:
    shown = PAGE.read_text().split("<!-- states -->")[1].split("<!-- /states -->")[0]
    assert shown.strip() == "\n\n".join(machine.markdown() for machine in MACHINES)
