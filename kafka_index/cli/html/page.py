"""HTML pages of reports: rows are collected, counted, colored and packed, then written as text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError, LinkedOutError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from kafka_index.core.format.records import (
    MESSAGE_V1_HEADER,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    RECORD_BATCH_HEADER,
    TIME_ENTRY,
    field_position,
)
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.job.result import BAD, NOTABLE, Conclusion, PageColumns, Severity

#: One row per segment of a dump, for the charts.
SEGMENT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment_base_offset", pa.int64()),
        ("log_size_bytes", pa.int64()),
        ("first_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("offset_entries", pa.int64()),
    ]
)
_MAGIC = field_position(RECORD_BATCH_HEADER, "magic")

#: Maximum number of rows in a page, and of additional rows that are not good; further rows are only
#: counted.
MAX_ROWS = 400_000
#: Columns of a page that are not columns of the report.
FOUND, SEVERITY, FIRST_TIMESTAMP = "found_", "severity_", "first_timestamp_ms"


def with_times(batch: pa.RecordBatch, *, reading: bool) -> pa.RecordBatch:
    """Convert segments with ``log_path`` to `SEGMENT_SCHEMA`.

    If not `reading`, values from files are null.
    """
    paths = batch.column("log_path").to_pylist() if reading else []
    firsts = first_timestamps(paths) if reading else pa.nulls(len(batch), pa.int64())
    known = {
        "first_timestamp_ms": firsts,
        "max_timestamp_ms": pa.array(
            map(_last_timestamp, paths) if reading else [None] * len(batch), pa.int64()
        ),
        "offset_entries": pa.array(
            map(_offset_entries, paths) if reading else [None] * len(batch), pa.int64()
        ),
    }
    columns = [
        known[field.name] if field.name in known else batch.column(field.name).cast(field.type)
        for field in SEGMENT_SCHEMA
    ]
    return pa.record_batch(columns, schema=SEGMENT_SCHEMA)


def first_timestamps(log_paths: Sequence[str | None]) -> pa.Array:
    """Return the base timestamp of the first batch of each log, int64."""
    return pa.array(map(_first_timestamp, log_paths), pa.int64())


def _first_timestamp(log_path: str | None) -> int | None:
    header = _read(log_path, RECORD_BATCH_HEADER.itemsize)
    if len(header) <= _MAGIC:
        return None
    magic = header[_MAGIC]
    layout, name = (
        (RECORD_BATCH_HEADER, "base_timestamp_ms")
        if magic == 2
        else (MESSAGE_V1_HEADER, "timestamp_ms")
    )
    if magic not in {1, 2} or len(header) < layout.itemsize:
        return None
    first = int(np.frombuffer(header, layout, 1)[name][0])
    return None if first <= NO_TIMESTAMP else first


def _last_timestamp(log_path: str | None) -> int | None:
    entry = _read(_index_path(log_path, TIME_INDEX_SUFFIX), -TIME_ENTRY.itemsize)
    if len(entry) != TIME_ENTRY.itemsize:
        return None
    last = int(np.frombuffer(entry, TIME_ENTRY)["timestamp_ms"][0])
    # Zeros are preallocated; the largest timestamp is somewhere before them.
    return last if last > 0 else None


def _offset_entries(log_path: str | None) -> int | None:
    path = _index_path(log_path, OFFSET_INDEX_SUFFIX)
    if path is None:
        return None
    try:
        size_bytes = os.stat(path).st_size
    except OSError:
        return None
    preallocated = size_bytes and not any(_read(path, -OFFSET_ENTRY.itemsize))
    return None if preallocated else size_bytes // OFFSET_ENTRY.itemsize


def _index_path(log_path: str | None, suffix: str) -> str | None:
    if log_path is None or not log_path.endswith(LOG_SUFFIX):
        return None
    return log_path.removesuffix(LOG_SUFFIX) + suffix


def _read(path: str | None, count: int) -> bytes:
    """Return the first bytes of a local file, or the last bytes if `count` is negative."""
    if path is None:
        return b""
    try:
        refuse_linked_out(path)
        with open(path, "rb", buffering=0) as file:
            if count < 0:
                file.seek(count, os.SEEK_END)
            return file.read(abs(count))
    except (OSError, LinkedOutError):
        return b""


class PageWriter:
    """The HTML page of a report, written when it is closed; a sink of `ReportFile`.

    `columns` determines how rows are counted; `about` has facts about the run for the footer.
    """

    def __init__(
        self,
        command: str,
        columns: PageColumns,
        about: Mapping[str, str],
        path: str,
        schema: pa.Schema,
    ) -> None:
        self._command = command
        self._columns = columns
        self._about = about
        self._path = path
        self._schema = schema
        self._folder = bokeh_folder(path)
        self._totals = Totals()
        self._kept: list[pa.Table] = []
        self._kept_rows = self._rows = 0
        self._segments: Iterable[pa.RecordBatch] = ()
        self._conclusion: Conclusion | None = None
        self._is_complete = True

    def write_table(self, table: pa.Table) -> None:
        severities = rank_rows(table, self._columns)
        found = find_values(table, self._columns)
        self._count(table, found, severities.to_numpy())
        self._rows += len(table)
        table = table.append_column(FOUND, found).append_column(SEVERITY, severities)
        room = max(MAX_ROWS - self._kept_rows, 0)
        if len(table) > room:
            bad = table.filter(pc.greater(severities, int(Severity.GOOD)))
            more = max(2 * MAX_ROWS - self._kept_rows, 0)
            table = table.slice(0, room) if not bad.num_rows else bad.slice(0, more)
        if not len(table):
            return
        if self._columns.rows_are_segments:
            firsts = first_timestamps(table["log_path"].to_pylist())
            table = table.append_column(FIRST_TIMESTAMP, firsts)
        self._kept.append(table)
        self._kept_rows += len(table)

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments; they are read when the page is written."""
        self._segments = segments

    def finish(self, conclusion: Conclusion) -> None:
        """Set the conclusion of the run."""
        self._conclusion = conclusion

    def interrupt(self) -> None:
        """Record that the run was interrupted, so that rows are incomplete."""
        self._conclusion, self._is_complete = None, False

    def close(self) -> None:
        text = PageText(self._command, self._columns, self._totals, self._about, self._conclusion)
        rows = self._table()
        parts = [Part("rows", pack_columns(rows), len(rows), self._rows)]
        # The columns are packed; the rows are not needed any more.
        self._kept, rows = [], None
        if not self._columns.rows_are_segments:
            batches = [with_times(batch, reading=self._is_complete) for batch in self._segments]
            segments = pa.Table.from_batches(batches, SEGMENT_SCHEMA)
            shown = segments.slice(0, MAX_ROWS)
            parts.append(Part("segments", pack_columns(shown), len(shown), len(segments)))
        with open(self._path, "w", encoding="utf-8") as file:
            file.writelines(text.lines(parts, self._folder))

    def _count(self, table: pa.Table, found: pa.ChunkedArray, severities: NDArray[np.int8]) -> None:
        totals = self._totals
        units = are_units(table, self._columns).to_numpy()
        weights = weigh_rows(table, self._columns)
        for severity, counter in ((None, totals.found), (Severity.BAD, totals.bad_of)):
            counted = pa.array(units if severity is None else units & (severities == severity))
            groups = pa.table({"found": found, "weight": weights}).filter(counted)
            sums = groups.group_by("found").aggregate([("weight", "sum")])
            for row in sums.to_pylist():
                counter[row["found"]] += row["weight_sum"]

    def _table(self) -> pa.Table:
        if self._kept:
            return pa.concat_tables(self._kept)
        schema = self._schema.append(pa.field(FOUND, pa.string()))
        return schema.append(pa.field(SEVERITY, pa.int8())).empty_table()


#: Larger integers of a column become BigInt in JavaScript. Differences of smaller integers, doubled
#: by zigzag, are exact as JavaScript numbers.
_MAX_EXACT = 1 << 51
_MILLISECONDS = 1000
# Placeholder in a path for the base offset in 20 digits; paths cannot contain it.
_BASE_OFFSET = "\0"
_QUICK, _BEST = 1, 9
_SCRIPTS = ("bokeh", "bokeh-widgets", "bokeh-tables", "bokeh-api")
_OWN_SCRIPTS = ("columns.js", "charts.js", "coverage.js", "plots.js", "table.js", "page.js")


@dataclass(slots=True)
class Totals:
    """The number of units, such as segments, of all rows by finding; and of bad rows."""

    found: Counter[str] = field(default_factory=Counter)
    bad_of: Counter[str] = field(default_factory=Counter)


def find_values(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    """Return the finding of each row, for the counts of findings."""
    values = [table[name] for name in columns.found_in]
    return pc.coalesce(*values, pa.scalar("", pa.string()))


def rank_rows(table: pa.Table, columns: PageColumns) -> pa.Array:
    """Return the `Severity` of each row, as int8."""
    severities = np.full(len(table), int(Severity.GOOD), np.int8)
    for name in columns.found_in:
        np.maximum(severities, _rank_values(table[name], columns), out=severities)
    if columns.worst_where is not None:
        worst = pc.fill_null(table[columns.worst_where], pa.scalar(value=False)).to_numpy()
        severities = np.minimum(severities, np.int8(Severity.NOTABLE))
        severities[worst] = Severity.BAD
    if columns.decided_by is not None:
        name, by_value = columns.decided_by
        for value, severity in by_value.items():
            severities[pc.equal(table[name], value).fill_null(fill_value=False).to_numpy()] = (
                severity
            )
    return pa.array(severities)


def are_units(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    """Return which rows are counted."""
    if columns.units is None:
        return pa.chunked_array([pa.repeat(pa.scalar(value=True), len(table))])
    if not columns.unit_values:
        return table[columns.units].is_valid()
    return pc.is_in(table[columns.units], pa.array(columns.unit_values, pa.string()))


def weigh_rows(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    if columns.weight is None:
        return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(table))])
    return table[columns.weight]


def _rank_values(column: pa.ChunkedArray, columns: PageColumns) -> NDArray[np.int8]:
    """Return the severity of each value: null is good, an unknown value is notable."""
    names = pa.array(columns.meanings, pa.string())
    # The last rank is for unknown values.
    ranks = [int(each.severity) for each in columns.meanings.values()]
    ranks_of = np.array([*ranks, int(Severity.NOTABLE)], np.int8)
    places = pc.fill_null(pc.index_in(column, names), -1).to_numpy()
    severities: NDArray[np.int8] = ranks_of[places]
    severities[column.is_null().to_numpy()] = Severity.GOOD
    return severities


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """A column of a page: base64 data, and the header that describes its encoding."""

    header: dict[str, object]
    payloads: tuple[str, ...]


def pack_columns(table: pa.Table) -> list[PackedColumn]:
    """Pack the columns of a table; columns without values are omitted.

    Floating-point columns are rounded to thousandths. In text columns, the base offset of a row in
    20 digits is stored only once.
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
    """Encode integers in the smallest of several ways.

    ``relative`` is the column to which they are relative: empty for the previous value, null for
    absolute values.
    """
    wide = _needs_bigint(values)
    codings: dict[str | None, Longs] = {None: values, "": np.diff(values, prepend=np.int64(0))}
    if not wide:
        codings |= {name: values - other for name, other in others.items()}
    planes = {name: _planes(coded) for name, coded in codings.items()}
    best = min(planes, key=lambda name: len(zlib.compress(planes[name][1], _QUICK)))
    width, raw = planes[best]
    header: dict[str, object] = {"width": width, "wide": wide, "relative": best}
    return header, (_payload(raw),)


def _needs_bigint(values: Longs) -> bool:
    return len(values) > 0 and bool(values.max() > _MAX_EXACT or values.min() < -_MAX_EXACT)


def _planes(values: Longs) -> tuple[int, bytes]:
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
    """Return the folder of Bokeh without importing it.

    Raises `InputError`, which mentions the report, if Bokeh is not installed.
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
    """The text of a page.

    `about` has facts about the run. Without a conclusion, the run was interrupted.
    """

    def __init__(
        self,
        command: str,
        columns: PageColumns,
        totals: Totals,
        about: Mapping[str, str],
        conclusion: Conclusion | None,
    ) -> None:
        self._command = command
        self._columns = columns
        self._totals = totals
        self._about = about
        self._conclusion = conclusion

    def lines(self, parts: Sequence[Part], bokeh: Path) -> Iterator[str]:
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
        # An empty icon, so that browsers do not request one.
        yield '<link rel="icon" href="data:,">\n'
        yield f"<title>kafka-index {escape(self._command)}</title>\n"
        yield f"<style>{_static('page.css')}</style>\n</head>\n<body>\n"

    def _verdict(self, parts: Sequence[Part]) -> Iterator[str]:
        columns, totals = self._columns, self._totals
        so_far = f"interrupted; {columns.nouns} so far: {totals.found.total():,}"
        conclusion = self._conclusion or Conclusion(BAD, so_far)
        severity, text = conclusion.severity, conclusion.text
        yield f'<header class="{severity.name.lower()}"><p>kafka-index {escape(self._command)}</p>'
        yield f'<h1 id="verdict">{escape(text)}</h1>'
        if conclusion.next_command is not None:
            yield f"<p>next: <code>{escape(conclusion.next_command)}</code></p>"
        yield "</header>\n<main>\n"
        for part in parts:
            if part.rows < part.all_rows:
                yield (
                    f'<p class="left-out">This page has {part.rows:,} of {part.all_rows:,} '
                    f"{escape(part.name)}, with priority for rows that need attention; a report in "
                    "Parquet has all.</p>\n"
                )
        yield '<section><h2>What was found</h2>\n<table id="found"><thead><tr><th>found</th>'
        yield f"<th>{escape(columns.nouns)}</th><th>bad</th><th>meaning</th></tr></thead><tbody>\n"
        names = [*columns.meanings, *sorted(set(totals.found) - set(columns.meanings))]

        def worst_first(name: str) -> tuple[bool, int]:
            explained = columns.meanings.get(name)
            return not totals.bad_of[name], -int(explained.severity if explained else NOTABLE)

        for name in sorted(filter(totals.found.get, names), key=worst_first):
            explained = columns.meanings.get(name)
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
        # The license must accompany the scripts.
        licence = (bokeh / "LICENSE.txt").read_text(encoding="utf-8")
        yield "</dl>\n<details><summary>The pictures and the table are Bokeh "
        yield f"{escape(version('bokeh'))}: its licence</summary>"
        yield f"<pre>{escape(licence)}</pre></details></footer>\n"

    def _description(self, parts: Sequence[Part], libraries: int) -> dict[str, object]:
        columns = self._columns
        return {
            "command": self._command,
            "nouns": columns.nouns,
            "libraries": libraries,
            "plots": [asdict(plot) for plot in columns.plots],
            "explained": {
                name: {"severity": int(each.severity), "text": each.text, "command": each.command}
                for name, each in columns.meanings.items()
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
    # Scripts have no escaping, so no text may look like the end of the script.
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
