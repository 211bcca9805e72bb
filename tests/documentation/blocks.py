"""The code blocks of the documentation, as tests run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fenced(page: Path) -> list[tuple[str, str]]:
    """The page's fenced blocks as (language, text); without a language it is empty."""
    return _BLOCK.findall(page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks in this language."""
    return [text for found, text in fenced(page) if found == language]


def block(page: Path, language: str) -> str:
    """The only block of that language."""
    (text,) = blocks(page, language)
    return text
