"""The code blocks of the documentation, as tests run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks in this language."""
    return [text for found, text in _BLOCK.findall(page.read_text()) if found == language]


def block(page: Path, language: str) -> str:
    """The only block of that language."""
    (text,) = blocks(page, language)
    return text
