"""Reports in HTML, opened in a browser from a file."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser

import kafka_index.cli.html.page
from kafka_index.cli.html.page import pack_columns
from tests.support.browser import (
    DAMAGED_OF,
    blank_page,
    open_page,
    running_browser,
    write_many,
    write_rows,
)
from tests.support.command_line import DUMP, run_here
from tests.support.dumps import dump, write_logs

COLUMNS_SCRIPT = Path(kafka_index.cli.html.page.__file__).parent / "static" / "columns.js"
SEGMENTS = 100_000
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<b>bold</b> & \"quotes\" 'single'",
    "$$\\frac{1}{2}$$ \\(x\\)",
    "日本語 \u202e right to left",
    "@{text} @text{safe} {{braces}} ${dollars}",
    "__proto__",
    "constructor",
]
MAP_SOURCE = "Bokeh.documents[0].roots()[0].renderers[0].data_source"
MAP = f"{MAP_SOURCE}.data"
ZOOM = """() => {
    const map = Bokeh.documents[0].roots()[0];
    map.x_range.start = 1e9;
    map.x_range.end = 1e10;
}"""
TIMES = """() => {
    const { start, end } = Bokeh.documents[1].roots()[0].x_range;
    return [start, end];
}"""
INTRUDE = """() => {
    const script = document.createElement("script");
    script.textContent = "window.intruded = true";
    const image = document.createElement("img");
    image.src = "http://127.0.0.1:9/";
    document.body.append(script, image);
}"""
UNPACK = """async ([name, header, payloads, count, integers]) => {
    payloads.forEach((payload, place) => {
        const element = document.createElement("script");
        element.type = "text/plain";
        element.id = `${name}-0-${place}`;
        element.textContent = payload;
        document.head.append(element);
    });
    const column = await unpackColumn(name, 0, header, count, integers);
    return [column.map(value => value === null ? null : String(value)), integers];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with a log that ends inside a batch."""
    root = write_logs(tmp_path_factory.mktemp("dump"), dump())
    log = root / "orders-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-10])
    return root


def run_command(command: str, dump_folder: Path, folder: Path, report: Path) -> None:
    """Run one of the commands that write pages."""
    queries = folder / "queries.csv"
    queries.write_text("topic,partition,offset\norders,0,5\nnope,1,2\n")
    arguments: dict[str, list[str | Path]] = {
        "build": ["--input", dump_folder, "--output", folder / "indexes"],
        "verify": ["--input", dump_folder],
        "predict": ["--input", dump_folder],
        "restore": ["--input", dump_folder, "--output", folder / "restored", "--new-topic-ids"],
        "stats": ["--input", dump_folder, "--sizes"],
        "lookup": [
            *("--logs", dump_folder, "--queries", queries, "--by", "offset"),
            *("--output", folder / "answers.csv"),
        ],
    }
    result = run_here(command, *arguments[command], "--report", report)
    assert result.returncode in {0, 1}, result.stderr


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("build", "1 segment of 4 damaged"),
        ("verify", "harmful file"),
        ("predict", "does_not_start"),
        ("restore", "lost"),
        ("lookup", "2 queries: 1 found"),
        ("stats", "1 corrupt or unreadable range skipped"),
    ],
)
def test_page_opened_offline_shows_the_verdict_first(
    browser: Browser, damaged: Path, tmp_path: Path, command: str, verdict: str
) -> None:
    report = tmp_path / "report.html"
    dump_folder = tmp_path / "dump"
    shutil.copytree(damaged, dump_folder)
    run_command(command, dump_folder, tmp_path, report)
    opened = open_page(browser, report)
    assert verdict in opened.verdict
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]
    assert opened.page.locator("#map canvas").count() > 0
    assert opened.page.locator("#coverage canvas").count() > 0
    opened.page.close()


@pytest.mark.parametrize(
    ("options", "plots"),
    [
        (("--sizes",), ["size_bytes", "records", "key_sizes", "value_sizes"]),
        (("--by", "hour"), ["size_bytes", "records"]),
    ],
)
def test_page_of_statistics_plots_its_numbers(
    browser: Browser, tmp_path: Path, options: tuple[str, ...], plots: list[str]
) -> None:
    report = tmp_path / "report.html"
    result = run_here(
        "stats", "--input", DUMP, "--topics", "orders.*", *options, "--report", report
    )
    assert result.returncode == 0, result.stderr
    opened = open_page(browser, report)
    assert opened.complaints == []
    drawn = opened.page.locator("#plots > div").all()
    assert [one.get_attribute("id") for one in drawn] == [f"plot-{name}" for name in plots]
    assert all(one.locator("canvas").count() for one in drawn)
    opened.page.close()


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    count = len(HOSTILE)
    columns: dict[str, object] = {
        "topic": HOSTILE,
        "partition": [0] * count,
        "log_path": [f"/dump/{name}-0/{0:020d}.log" for name in HOSTILE],
        "log_size_bytes": [1000] * count,
        "max_timestamp_ms": [1_700_000_000_000] * count,
        "offset_entries": [1] * count,
        "status": ["truncated"] * count,
        "reason": HOSTILE,
    }
    write_rows(report, columns, count)
    opened = open_page(browser, report)
    page = opened.page
    assert sorted(opened.column(0)) == sorted(HOSTILE)
    box = page.locator("#map .bk-Canvas, #map .bk-CanvasPanel, #map").first.bounding_box()
    assert box is not None
    for step in range(1, 20):
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * step / 20)
    page.locator("#table .slick-cell.l0").first.click()
    page.wait_for_selector("#row dd")
    page.locator("#findings summary").first.click()
    page.wait_for_selector("#findings dd")
    assert "kafka-index dump '/dump/" in page.inner_text("#row pre")
    assert page.locator("img, b").count() == 0
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]
    # Were there a hole all the same, the page's policy would stop a script and an image.
    page.evaluate(INTRUDE)
    opened.wait_until(lambda: len(opened.complaints) >= 2)
    assert page.evaluate("() => window.intruded === undefined")
    assert all("Content Security Policy" in complaint for complaint in opened.complaints)
    page.close()


def test_hundred_thousand_segments_fit_sort_filter_and_scroll(
    browser: Browser, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    write_many(report, SEGMENTS)
    assert report.stat().st_size < 5_000_000
    opened = open_page(browser, report)
    page = opened.page
    assert opened.verdict == "100 segments of 100,000 damaged"
    assert opened.shown == SEGMENTS
    # What is damaged comes first.
    assert set(opened.column(11)) == {"truncated"}
    page.fill("#filter", "topic-03 torn_batch")
    opened.wait_for_shown(SEGMENTS // 10 // DAMAGED_OF)
    assert set(opened.column(0)) == {"topic-03"}
    page.fill("#filter", "")
    opened.wait_for_shown(SEGMENTS)
    page.locator("#table .slick-header-column", has_text="log_size_bytes").click()
    smallest = 1_001_000_000
    opened.wait_until(lambda: all(int(text) < smallest for text in opened.column(4)))
    sizes = [int(text) for text in opened.column(4)]
    assert sizes == sorted(sizes)
    opened.scroll_table_to_end()
    opened.wait_until(lambda: all(int(text) > 1_073_000_000 for text in opened.column(4)))
    # The overview has cells; zoomed in, the map has single segments, which choose their rows.
    assert page.evaluate(f"() => {MAP}.segment.every(number => number < 0)")
    page.evaluate(ZOOM)
    opened.wait_until(lambda: page.evaluate(f"() => {MAP}.segment.some(number => number >= 0)"))
    page.evaluate(f"() => {{ {MAP_SOURCE}.selected.indices = [0]; }}")
    opened.wait_for_shown(1)
    assert opened.complaints == []
    page.close()


def test_findings_table_can_be_filtered(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    topics = [f"topic-{number % 7}" for number in range(100)]
    reasons = ["torn_batch" if number % 2 else "bad_crc" for number in range(100)]
    columns: dict[str, object] = {
        "topic": topics,
        "partition": range(100),
        "status": ["truncated"] * 99 + ["built"],
        "reason": reasons,
    }
    write_rows(report, columns, 100)
    opened = open_page(browser, report)
    page = opened.page
    rows = page.locator("#findings tbody tr")
    assert rows.count() == 50
    assert page.inner_text("#findings-shown").startswith("the first 50 of 99;")
    page.fill("#findings-filter", "topic-3 TORN")
    opened.wait_until(lambda: rows.count() < 50)
    names = [f"topic-3-{number}" for number in range(99) if number % 7 == 3 and number % 2]
    assert rows.locator("td:nth-child(2)").all_inner_texts() == names
    assert page.inner_text("#findings-shown") == f"{len(names)} of 99"
    rows.first.locator("summary").click()
    page.wait_for_selector("#findings dd")
    assert names[0] in page.inner_text("#findings h3")
    page.close()


def test_time_chart_of_one_topic_does_not_shrink_others(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_rows(report, _topics_of(["far", *"abc"], [1, *[1_700_000_000_000] * 3]), 8)
    page = open_page(browser, report).page
    start, end = page.evaluate(TIMES)
    assert 1_699_999_000_000 < start < 1_700_000_000_000
    assert end - start < 2 * 3_600_000
    assert "far from 1970-01-01" in page.inner_text("#far span")
    page.click("#far button")
    start, end = page.evaluate(TIMES)
    assert start < 1
    assert end > 1_700_003_600_000
    page.close()


def test_time_chart_shows_all_close_times(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    first = 1_700_000_000_000
    starts = [first, first + 3_600_000, first + 7_200_000, first + 20_000_000]
    write_rows(report, _topics_of(list("abcd"), starts), 8)
    page = open_page(browser, report).page
    start, end = page.evaluate(TIMES)
    assert start < first
    assert end > starts[-1] + 3_600_000
    assert page.locator("#far").is_hidden()
    page.close()


def _topics_of(topics: list[str], starts: list[int]) -> dict[str, object]:
    """Columns of two segments a topic, which end at its start and an hour later."""
    return {
        "topic": [topic for topic in topics for _ in range(2)],
        "partition": [0] * 2 * len(topics),
        "segment_base_offset": [0, 10] * len(topics),
        "log_size_bytes": [1000] * 2 * len(topics),
        "max_timestamp_ms": [at + after for at in starts for after in (0, 3_600_000)],
    }


def test_packed_columns_are_decompressed_exactly(browser: Browser) -> None:
    table = pa.table(
        {
            "segment_base_offset": pa.array([0, 5, 1 << 40, 7], pa.int64()),
            "path": [f"/a/{5:020d}.log", f"/{5:020d}/{5:020d}.log", None, "/b \u00e9"],
            "far": pa.array([-(1 << 63), (1 << 63) - 1, None, 0], pa.int64()),
            "near": pa.array([-1, -300, 1 << 50, None], pa.int64()),
            "rising": pa.array([10, 20, 30, 40], pa.int64()),
            "yes": [True, None, False, True],
            "seconds": [0.25, 1.5, None, 3.0],
        }
    )
    page = blank_page(browser).page
    page.add_script_tag(content=COLUMNS_SCRIPT.read_text(encoding="utf-8"))
    integers: object = {}
    for packed in pack_columns(table):
        name = str(packed.header["name"])
        assert all(base64.b64decode(payload)[:2] == b"\x1f\x8b" for payload in packed.payloads)
        values, integers = page.evaluate(
            UNPACK, [name, packed.header, list(packed.payloads), len(table), integers]
        )
        assert values == list(map(_as_script, table[name].to_pylist()))
    page.close()


def _as_script(value: object) -> str | None:
    """A value as JavaScript makes a string of it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
