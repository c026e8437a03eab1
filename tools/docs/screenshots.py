"""Makes the pictures of docs/reports.md: a damaged copy of the example dump, verified, in chromium.

Run from the root of the repository: ``.venv/bin/python -m tools.docs.screenshots``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from kafka_index.cli import main
from tests.support.browser import open_page, running_browser

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
QUALITY = 70


def damaged_dump(folder: Path) -> Path:
    """Return a copy of the example dump with a torn log, a changed one, and wrong index files."""
    dump = folder / "dump"
    shutil.copytree(ROOT / "examples" / "dump", dump)
    torn = dump / "payments-0" / f"{532:020d}.log"
    torn.write_bytes(torn.read_bytes()[:-100])
    changed = sorted((dump / "orders.eu-west-1").glob("*.log"))[1]
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    foreign = sorted((dump / "trace-spans.fine-0").glob("*.index"))
    foreign[4].write_bytes(foreign[2].read_bytes())
    sorted((dump / "page-views-0").glob("*.timeindex"))[1].unlink()
    return dump


def save(page: Page, name: str, top: str, bottom: str) -> None:
    """Save what lies between the tops of two elements."""
    first, last = (page.locator(each).bounding_box() for each in (top, bottom))
    if first is None or last is None:
        raise SystemExit(f"{name}: the page has no {top} or no {bottom}")
    size = page.viewport_size or {"width": 1000}
    clip = {"x": 0, "y": first["y"], "width": size["width"], "height": last["y"] - first["y"]}
    shot = page.screenshot(full_page=True, clip=clip)
    Image.open(BytesIO(shot)).save(PICTURES / f"{name}.webp", quality=QUALITY, method=6)


def take() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, running_browser() as browser:
        report = Path(folder) / "verify.html"
        settings = ROOT / "examples" / "dump.properties"
        dump = damaged_dump(Path(folder))
        sys.argv = ["kafka-index", "verify", "--input", str(dump)]
        sys.argv += ["--config", str(settings), "--report", str(report), "--quiet"]
        main()
        page = open_page(browser, report).page
        page.set_viewport_size({"width": 1000, "height": 800})
        page.wait_for_timeout(500)
        page.locator("#findings summary").first.click()
        page.wait_for_timeout(200)
        PICTURES.mkdir(exist_ok=True)
        save(page, "verify-top", "header", "#map-section")
        save(page, "verify-map", "#map-section", "#density-section")
        page.locator("#findings summary").first.click()
        page.fill("#filter", "page-views-0 timeindex")
        page.wait_for_timeout(500)
        page.locator("#table .slick-cell.l0").first.click()
        page.wait_for_timeout(200)
        page.evaluate("scrollTo(0, 0)")
        save(page, "verify-table", "section:has(#table)", "footer")


if __name__ == "__main__":
    take()
