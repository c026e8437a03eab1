"""The text of a page: the verdict and the counts as HTML, the rest as data for its scripts.

Nothing of a report is markup: names stand in HTML escaped, or in packed columns, which the scripts
show as text. The page forbids its browser to load anything, and to run scripts other than those
that it was written with, which it names by their digests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from kafka_index.pages.columns import PackedColumn
from kafka_index.pages.libraries import bokeh_license, bokeh_scripts, bokeh_version
from kafka_index.pages.page import Page, Severity, Totals

_SCRIPTS = ("columns.js", "charts.js", "coverage.js", "table.js", "page.js")


@dataclass(frozen=True, slots=True)
class Part:
    """A table of a page, ``rows`` or ``segments``; `all_rows` counts the rows of the report."""

    name: str
    columns: Sequence[PackedColumn]
    rows: int
    all_rows: int


class PageText:
    """The text of a page, piece by piece.

    `about` has the facts about the run by name; the run is whole if it came to its end.
    """

    def __init__(
        self, page: Page, totals: Totals, about: Mapping[str, str], *, is_whole: bool
    ) -> None:
        self._page = page
        self._totals = totals
        self._about = about
        self._is_whole = is_whole

    def pieces(self, parts: Sequence[Part], bokeh: Path) -> Iterator[str]:
        """Yield the page with its tables and the scripts of Bokeh."""
        libraries = bokeh_scripts(bokeh)
        script = "".join(map(_static, _SCRIPTS))
        yield from self._head([script.encode(), *libraries])
        yield from self._verdict(parts)
        yield _static("body.html")
        yield from self._end(bokeh)
        for number, library in enumerate(libraries):
            yield _data(f"library-{number}", base64.b64encode(gzip.compress(library, 9)).decode())
        for part in parts:
            for number, column in enumerate(part.columns):
                for place, payload in enumerate(column.payloads):
                    yield _data(f"{part.name}-{number}-{place}", payload)
        yield _json("description", self._description(parts, len(libraries)))
        yield f"<script>{script}</script>\n</body>\n</html>\n"

    def _head(self, scripts: Sequence[bytes]) -> Iterator[str]:
        digests = (base64.b64encode(hashlib.sha256(each).digest()).decode() for each in scripts)
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        yield f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An icon that is empty: a browser asks for none.
        yield '<link rel="icon" href="data:,">\n'
        yield f"<title>kafka-index {escape(self._page.command)}</title>\n"
        yield f"<style>{_static('page.css')}</style>\n</head>\n<body>\n"

    def _verdict(self, parts: Sequence[Part]) -> Iterator[str]:
        page, totals = self._page, self._totals
        verdict = page.verdict(totals)
        severity, text = verdict.severity, verdict.text
        if not self._is_whole:
            severity, text = Severity.BAD, f"interrupted; so far: {text}"
        yield f'<header class="{severity.name.lower()}"><p>kafka-index {escape(page.command)}</p>'
        yield f'<h1 id="verdict">{escape(text)}</h1></header>\n<main>\n'
        for part in parts:
            if part.rows < part.all_rows:
                yield (
                    f'<p class="left-out">This page has {part.rows:,} of {part.all_rows:,} '
                    f"{escape(part.name)}, first of all those that want attention; a report in "
                    "Parquet has all.</p>\n"
                )
        yield '<section><h2>What was found</h2>\n<table id="found"><thead><tr><th>found</th>'
        yield f"<th>{escape(page.nouns)}</th><th>bad</th><th>meaning</th></tr></thead><tbody>\n"
        for name in [*page.explained, *sorted(set(totals.found) - set(page.explained))]:
            if not totals.found[name]:
                continue
            explained = page.explained.get(name)
            yield (
                f'<tr><th scope="row"><button data-found="{escape(name)}">{escape(name)}</button>'
                f"</th><td>{totals.found[name]:,}</td><td>{totals.bad_of[name] or '':}</td>"
                f"<td>{escape('' if explained is None else explained.text)}</td></tr>\n"
            )
        yield "</tbody></table></section>\n"

    def _end(self, bokeh: Path) -> Iterator[str]:
        yield "</main>\n<footer><dl>"
        for name, text in self._about.items():
            yield f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        yield "</dl>\n<details><summary>The pictures and the table are Bokeh "
        yield f"{escape(bokeh_version())}: its licence</summary>"
        yield f"<pre>{escape(bokeh_license(bokeh))}</pre></details></footer>\n"

    def _description(self, parts: Sequence[Part], libraries: int) -> dict[str, object]:
        page = self._page
        return {
            "command": page.command,
            "nouns": page.nouns,
            "libraries": libraries,
            "explained": {
                name: {"severity": int(each.severity), "text": each.text, "command": each.command}
                for name, each in page.explained.items()
            },
            "parts": {
                part.name: {
                    "rows": part.rows,
                    "columns": [
                        {**each.header, "payloads": len(each.payloads)} for each in part.columns
                    ],
                }
                for part in parts
            },
        }


@cache
def _static(name: str) -> str:
    return (files("kafka_index.pages") / "static" / name).read_text(encoding="utf-8")


def _data(name: str, payload: str) -> str:
    return f'<script type="text/plain" id="{name}">{payload}</script>\n'


def _json(name: str, value: object) -> str:
    # In a script nothing is escaped: no text may look like its end.
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
