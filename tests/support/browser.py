"""Chromium without a window, as Debian packages it; what it loads and complains of."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.timeouts import TIMEOUT_SECONDS

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class OpenPage:
    """A page that is open, what it asked for, and what its console says."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.page.inner_text("#verdict")

    @property
    def shown(self) -> int:
        """The number of rows that the filters leave."""
        return int(self.page.get_attribute("body", "data-shown") or -1)

    def wait_for_shown(self, count: int) -> None:
        self.page.wait_for_selector(f'body[data-shown="{count}"]', state="attached")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "the page does not change"
            self.page.wait_for_timeout(30)

    def scroll_table_to_end(self) -> None:
        for view in self.page.locator("#table .slick-viewport").all():
            view.evaluate("view => { view.scrollTop = view.scrollHeight; }")

    def column(self, number: int) -> list[str]:
        """The cells of a column that are in sight."""
        cells = self.page.locator(f"#table .slick-cell.l{number}")
        return [text.strip() for text in cells.all_inner_texts()]


def chromium() -> str:
    """Return the program; skip the test without one, or fail where one is required."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        why = "there is no chromium (Debian: apt-get install chromium): no page is opened"
        if os.environ.get("KAFKA_INDEX_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    program = chromium()
    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def blank_page(browser: Browser) -> OpenPage:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(TIMEOUT_SECONDS * 1000)
    opened = OpenPage(page)
    page.on("request", lambda request: opened.requests.append(request.url))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            opened.complaints.append(message.text) if message.type in {"error", "warning"} else None
        ),
    )
    page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    return opened


def open_page(browser: Browser, path: Path) -> OpenPage:
    """Open a report, and wait until it is drawn."""
    opened = blank_page(browser)
    opened.page.goto(path.as_uri())
    opened.page.wait_for_selector("body[data-ready]")
    return opened
