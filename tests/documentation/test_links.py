"""Every link of the documentation leads to a file that is there, and every page is reached from the README."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documentation.blocks import ROOT

_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links(page: Path) -> list[Path]:
    """The files a page links to."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [(page.parent / target).resolve() for target in _LINK.findall(text) if "://" not in target]


def test_every_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        (str(page.relative_to(ROOT)), str(target)) for page in pages for target in links(page) if not target.exists()
    ]
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [(ROOT / "README.md").resolve()]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += links(page)
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} <= reached
