"""What `docs/atdp.md` shows is true: its example conforms, its vectors hold, its lists are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from atdp.canonical import canonical, digest
from atdp.conformance import RULES, check
from atdp.conformance.single import OPERATIONS
from atdp.convert import FORMATS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "atdp.md").read_text()
VECTORS = re.findall(r"^\| `(\{.*?)` \| `(\{.*?)` \| `([0-9a-f]{16})` \|$", TEXT, re.MULTILINE)


def test_the_worked_example_conforms() -> None:
    (example,) = re.findall(r"```jsonl\n(.*?)```", TEXT, re.DOTALL)
    assert len(example.splitlines()) == 8
    assert list(check(example.splitlines())) == []


def test_there_are_vectors() -> None:
    assert len(VECTORS) == 4


@pytest.mark.parametrize(("value", "form", "begins"), VECTORS)
def test_the_vectors_of_the_canonical_form_hold(value: str, form: str, begins: str) -> None:
    found = json.loads(value)
    assert canonical(found).decode() == form
    assert digest(found).removeprefix("sha256:").startswith(begins)


def test_every_rule_is_listed_as_it_is_checked() -> None:
    for rule, asks in RULES.items():
        assert f"| `{rule}` | {asks} |" in TEXT


def test_every_operation_and_every_format_is_listed() -> None:
    assert all(kind in TEXT for kind in OPERATIONS)
    formats = (DOCS / "formats.md").read_text()
    assert all(f"`{name}`" in formats for name in FORMATS)
