"""A real browser for tests of pages people use: how it is started, and how somebody signs in to the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: `make browser`")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


def sign_in(page: Page, console_url: str, key: str) -> None:
    """By keyboard alone: the field has the focus, though a moment after the page is there."""
    page.goto(f"{console_url}/login")
    page.wait_for_function("document.activeElement instanceof HTMLInputElement")
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: not url.endswith("/login"))
