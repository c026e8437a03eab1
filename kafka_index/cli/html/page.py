"""The page of a command: how its rows are judged, counted, explained and packed, and its text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import Longs
from kafka_index.core.format.names import OFFSET_DIGITS
from kafka_index.core.job.result import BAD, GOOD, NOTABLE, Conclusion, Meaning, Severity

__all__ = ["BAD", "GOOD", "NOTABLE", "Conclusion", "Meaning", "Page", "Severity"]

#: The command that shows more about a file.
DUMP = "kafka-index dump {path}"
#: Rows with the columns ``topic``, ``partition``, ``segment_base_offset``, ``log_path`` and
#: ``log_size_bytes``.
SegmentBatches = Callable[[], Iterator[pa.RecordBatch]]
#: Beyond this, integers of a column are BigInt in JavaScript: differences of smaller ones, doubled
#: by zigzag, are exact as its numbers.
_MAX_EXACT = 1 << 51
_MILLISECONDS = 1000
# Stands in a path for the base offset in 20 digits; no path holds it.
_BASE_OFFSET = "\0"
_QUICK, _BEST = 1, 9
_SCRIPTS = ("bokeh", "bokeh-widgets", "bokeh-tables", "bokeh-api")
_OWN_SCRIPTS = ("columns.js", "charts.js", "coverage.js", "table.js", "page.js")


def explain(
    texts: Mapping[str, str], severities: Mapping[str, Severity], commands: Mapping[str, str]
) -> dict[str, Meaning]:
    """Return what a page explains: of each value its text, its severity, and a command."""
    return {
        str(name): Meaning(severities[str(name)], text, commands.get(str(name)))
        for name, text in texts.items()
    }


@dataclass(slots=True)
class Totals:
    """The totals of all rows of a report, left-out rows included.

    `found` counts units, such as segments, by their finding, `bad` and `notable` by severity.
    `bad_others` and `others` count the rows that are not units, such as those of whole partitions.
    """

    found: Counter[str] = field(default_factory=Counter)
    bad_of: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    notable: int = 0
    bad_others: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def units(self) -> int:
        """All units."""
        return self.found.total()


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command.

    `nouns` names the units that are counted, such as ``segments``. `found_in` are the columns with
    findings: a row is counted by the first that is not null, and is as bad as the worst;
    `explained` has their values, the best first. `units` is a column, and `unit_values` its values
    in the rows that are counted: all rows if it is None, any value that is not null if there are
    none. `weight` is a column with the number of units of a row, by default 1. `worst_where` is a
    column of booleans that makes a row bad, and without which it is not. `segments` are those of
    the dump; None if the rows are segments.
    """

    command: str
    nouns: str
    found_in: tuple[str, ...]
    explained: Mapping[str, Meaning]
    verdict: Callable[[Totals], Conclusion]
    units: str | None = None
    unit_values: tuple[str, ...] = ()
    weight: str | None = None
    worst_where: str | None = None
    segments: SegmentBatches | None = None

    def found(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the findings, row by row."""
        columns = [table[name] for name in self.found_in]
        return pc.coalesce(*columns, pa.scalar("", pa.string()))

    def severities(self, table: pa.Table) -> pa.Array:
        """Return `Severity` row by row, as int8."""
        severities = np.full(len(table), int(Severity.GOOD), np.int8)
        for name in self.found_in:
            np.maximum(severities, self._severities_of(table[name]), out=severities)
        if self.worst_where is not None:
            worst = pc.fill_null(table[self.worst_where], pa.scalar(value=False)).to_numpy()
            severities = np.minimum(severities, np.int8(Severity.NOTABLE))
            severities[worst] = Severity.BAD
        return pa.array(severities)

    def are_units(self, table: pa.Table) -> pa.ChunkedArray:
        """Return which rows are counted."""
        if self.units is None:
            return pa.chunked_array([pa.repeat(pa.scalar(value=True), len(table))])
        if not self.unit_values:
            return table[self.units].is_valid()
        return pc.is_in(table[self.units], pa.array(self.unit_values, pa.string()))

    def weights(self, table: pa.Table) -> pa.ChunkedArray:
        """Return how many units each row is."""
        if self.weight is None:
            return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(table))])
        return table[self.weight]

    def _severities_of(self, column: pa.ChunkedArray) -> NDArray[np.int8]:
        """Return the severities of values; that of null is good, an unknown one is notable."""
        names = pa.array(self.explained, pa.string())
        # The last one is that of a value without a place.
        ranks = [int(each.severity) for each in self.explained.values()]
        ranks_of = np.array([*ranks, int(Severity.NOTABLE)], np.int8)
        places = pc.fill_null(pc.index_in(column, names), -1).to_numpy()
        severities: NDArray[np.int8] = ranks_of[places]
        severities[column.is_null().to_numpy()] = Severity.GOOD
        return severities


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """A column of a page: its bytes in base64, and the header by which the page unpacks them."""

    header: dict[str, object]
    payloads: tuple[str, ...]


def pack_columns(table: pa.Table) -> list[PackedColumn]:
    """Pack the columns of a table; those without a value are left out.

    A floating-point column is rounded to thousandths. In text columns, the base offset of a row in
    20 digits is written once.
    """
    integers: dict[str, Longs] = {}
    packed = []
    for name in table.column_names:
        column = table[name]
        if len(column) and column.null_count == len(column):
            continue
        kind = column.type
        if pa.types.is_string(kind):
            packed.append(_text(name, column, integers.get("segment_base_offset")))
            continue
        scale = 1
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif pa.types.is_floating(kind):
            scale = _MILLISECONDS
            column = pc.round(pc.multiply(column, float(scale)))
        values = pc.fill_null(column.cast(pa.int64(), safe=False), 0).to_numpy()
        header, payloads = _integers(values, integers)
        if column.null_count:
            header["nulls"] = True
            missing = np.packbits(column.is_null().to_numpy(), bitorder="little")
            payloads += (_payload(missing.tobytes()),)
        if not header["wide"]:
            integers[name] = values
        form = "boolean" if pa.types.is_boolean(kind) else "integer"
        packed.append(
            PackedColumn({"name": name, "form": form, "scale": scale, **header}, payloads)
        )
    return packed


def _integers(
    values: Longs, others: Mapping[str, Longs]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Pack integers in the coding that gives the fewest bytes.

    ``relative`` is the column that they are taken relative to, the values before them if it is
    empty, nothing if it is null.
    """
    wide = _is_wide(values)
    codings: dict[str | None, Longs] = {None: values, "": np.diff(values, prepend=np.int64(0))}
    if not wide:
        codings |= {name: values - other for name, other in others.items()}
    planes = {name: _planes(coded) for name, coded in codings.items()}
    best = min(planes, key=lambda name: len(zlib.compress(planes[name][1], _QUICK)))
    width, raw = planes[best]
    header: dict[str, object] = {"width": width, "wide": wide, "relative": best}
    return header, (_payload(raw),)


def _is_wide(values: Longs) -> bool:
    return len(values) > 0 and bool(values.max() > _MAX_EXACT or values.min() < -_MAX_EXACT)


def _planes(values: Longs) -> tuple[int, bytes]:
    """Return the bytes that a value needs, and the byte planes of all."""
    zigzag = ((values << 1) ^ (values >> 63)).astype("<i8")
    planes = zigzag.view(np.uint8).reshape(-1, 8).T
    used = np.flatnonzero(planes.any(axis=1))
    width = int(used[-1]) + 1 if len(used) else 1
    return width, np.ascontiguousarray(planes[:width]).tobytes()


def _text(name: str, column: pa.ChunkedArray, base_offsets: Longs | None) -> PackedColumn:
    if base_offsets is not None and name.endswith("path"):
        column = pa.chunked_array([_without_base_offsets(column, base_offsets)])
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = pc.fill_null(encoded.indices, -1).cast(pa.int64()).to_numpy()
    header, payloads = _integers(codes, {})
    words = json.dumps(encoded.dictionary.to_pylist()).encode()
    return PackedColumn({"name": name, "form": "text", **header}, (*payloads, _payload(words)))


def _without_base_offsets(column: pa.ChunkedArray, base_offsets: Longs) -> pa.Array:
    texts = (
        text if text is None else text.replace(f"{base:0{OFFSET_DIGITS}d}", _BASE_OFFSET)
        for text, base in zip(column.to_pylist(), base_offsets.tolist(), strict=True)
    )
    return pa.array(texts, pa.string())


def _payload(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _BEST, mtime=0)).decode()


def bokeh_folder(report: str) -> Path:
    """Return the folder of Bokeh, which is not imported.

    Raises `InputError`, which names the report, if it is not installed.
    """
    spec = importlib.util.find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the library for HTML reports is not installed (bokeh)",
            path=report,
            hint="pip install 'kafka-index[html]'",
        )
    return Path(spec.submodule_search_locations[0])


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
        folder = bokeh / "server" / "static" / "js"
        # In the order in which a page runs them.
        libraries = [(folder / f"{name}.min.js").read_bytes() for name in _SCRIPTS]
        script = "".join(map(_static, _OWN_SCRIPTS))
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
        names = [*page.explained, *sorted(set(totals.found) - set(page.explained))]

        def worst_first(name: str) -> tuple[bool, int]:
            explained = page.explained.get(name)
            return not totals.bad_of[name], -int(explained.severity if explained else NOTABLE)

        for name in sorted(filter(totals.found.get, names), key=worst_first):
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
        # The licence goes where the scripts go.
        licence = (bokeh / "LICENSE.txt").read_text(encoding="utf-8")
        yield "</dl>\n<details><summary>The pictures and the table are Bokeh "
        yield f"{escape(version('bokeh'))}: its licence</summary>"
        yield f"<pre>{escape(licence)}</pre></details></footer>\n"

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
    return (files("kafka_index.cli.html") / "static" / name).read_text(encoding="utf-8")


def _data(name: str, payload: str) -> str:
    return f'<script type="text/plain" id="{name}">{payload}</script>\n'


def _json(name: str, value: object) -> str:
    # In a script nothing is escaped: no text may look like its end.
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
