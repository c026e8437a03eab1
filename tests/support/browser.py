"""Chromium without a window, as Debian packages it; what it loads and complains of."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kafka_index.cli.exit_status import run_summary
from kafka_index.cli.html.page import PageWriter
from kafka_index.commands.build.result import BUILD_REPORT, FILE_SCHEMA
from kafka_index.core.errors import plural
from kafka_index.core.job.result import BAD, GOOD, Conclusion
from kafka_index.core.output.report_file import ReportFile
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
    result = next(filter(None, map(shutil.which, _NAMES)), None)
    if result is None:
        why = "there is no chromium (Debian: apt-get install chromium): no page is opened"
        if os.environ.get("KAFKA_INDEX_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return result


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
    """Open a report, and wait until it is generated."""
    opened = blank_page(browser)
    opened.page.goto(path.as_uri())
    opened.page.wait_for_selector("body[data-ready]")
    return opened


_PARTITIONS = 100
_PER_TOPIC = 10
_REASON = "torn_batch (expected 186 bytes, found 86)"
#: One segment in so many is damaged on a page of `write_many`.
DAMAGED_OF = 1000


def write_rows(path: Path, columns: dict[str, object], rows: int) -> None:
    """Write the page of a build of some segments; columns that are not given are null."""
    defaults: dict[str, object] = {
        "segment_base_offset": [0] * rows,
        "status": ["built"] * rows,
        "kind": ["segment"] * rows,
        "retriable": [False] * rows,
    }
    given = defaults | columns
    arrays = [
        pa.array(given[field.name], field.type)
        if field.name in given
        else pa.nulls(rows, field.type)
        for field in FILE_SCHEMA
    ]
    statuses = arrays[FILE_SCHEMA.get_field_index("status")].to_pylist()
    damaged = sum(status in ("truncated", "failed") for status in statuses)
    verdict = f"{plural(damaged, 'segment')} of {rows:,} damaged"
    with build_report(path) as report:
        report.write_table(pa.table(arrays, schema=FILE_SCHEMA))
        report.finish(Conclusion(BAD if damaged else GOOD, verdict))


def build_report(path: Path) -> ReportFile:
    """Open the page of a build."""
    assert BUILD_REPORT.page is not None
    page = partial(PageWriter, "build", BUILD_REPORT.page, run_summary().about())
    return ReportFile(str(path), FILE_SCHEMA, page)


def write_many(path: Path, segments: int) -> None:
    """Write the page of a build of many segments, whose numbers are as random as real ones."""
    random = np.random.default_rng(7)
    each = segments // _PARTITIONS
    topics = np.repeat([f"topic-{number // _PER_TOPIC:02d}" for number in range(_PARTITIONS)], each)
    partitions = np.repeat(np.arange(_PARTITIONS) % _PER_TOPIC, each)
    records = random.integers(800_000, 1_500_000, (_PARTITIONS, each))
    ends = np.cumsum(records, axis=1)
    bases = (ends - records).ravel()
    sizes = random.integers(1_000_000_000, 1 << 30, segments)
    damaged = np.arange(segments) % DAMAGED_OF == 0
    times = 1_700_000_000_000 + np.cumsum(random.integers(1000, 7_200_000, (_PARTITIONS, each)), 1)
    named = zip(topics, partitions, bases, strict=True)
    columns: dict[str, object] = {
        "topic": topics,
        "partition": partitions,
        "segment_base_offset": bases,
        "log_path": [f"/data/{topic}-{number}/{base:020d}.log" for topic, number, base in named],
        "log_size_bytes": sizes,
        "valid_bytes": np.where(damaged, sizes // 2, sizes),
        "batch_count": random.integers(20_000, 60_000, segments),
        "offset_entries": random.integers(200_000, 250_000, segments),
        "time_entries": random.integers(180_000, 220_000, segments),
        "next_offset": ends.ravel(),
        "max_timestamp_ms": times.ravel(),
        "status": np.where(damaged, "truncated", "built"),
        "reason": [_REASON if each else None for each in damaged],
        "position_bytes": pa.array(np.where(damaged, sizes // 2, 0), mask=~damaged),
        "seconds": random.random(segments),
        "producers": random.integers(0, 50, segments),
        "reason_code": ["torn_batch" if each else None for each in damaged],
        "segments": np.ones(segments, np.int64),
    }
    write_rows(path, columns, segments)
