"""HTML reports: collect and count report rows, pack their columns, and write the page."""

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

#: Maximum number of rows in a page. Beyond this maximum, as many rows again are added if their
#: severity is not good. All other rows are only counted.
MAX_ROWS = 400_000
#: Columns of a page that are not columns of the report.
FOUND, SEVERITY, FIRST_TIMESTAMP = "found_", "severity_", "first_timestamp_ms"


def to_segment_batch(batch: pa.RecordBatch, *, reading: bool) -> pa.RecordBatch:
    """Convert segments with ``log_path`` to `SEGMENT_SCHEMA`.

    If not `reading`, no file is read, and the values from files are null.
    """
    paths = batch.column("log_path").to_pylist() if reading else []
    base_timestamps = first_timestamps(paths) if reading else pa.nulls(len(batch), pa.int64())
    file_columns = {
        "first_timestamp_ms": base_timestamps,
        "max_timestamp_ms": pa.array(
            map(_last_timestamp, paths) if reading else [None] * len(batch), pa.int64()
        ),
        "offset_entries": pa.array(
            map(_offset_entries, paths) if reading else [None] * len(batch), pa.int64()
        ),
    }
    columns = [
        file_columns[field.name]
        if field.name in file_columns
        else batch.column(field.name).cast(field.type)
        for field in SEGMENT_SCHEMA
    ]
    return pa.record_batch(columns, schema=SEGMENT_SCHEMA)


def first_timestamps(log_paths: Sequence[str | None]) -> pa.Array:
    """Return the base timestamp of the first batch of each ``.log``, as int64."""
    return pa.array(map(_first_timestamp, log_paths), pa.int64())


def _first_timestamp(log_path: str | None) -> int | None:
    header = _read_bytes(log_path, RECORD_BATCH_HEADER.itemsize)
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
    timestamp_ms = int(np.frombuffer(header, layout, 1)[name][0])
    return None if timestamp_ms <= NO_TIMESTAMP else timestamp_ms


def _last_timestamp(log_path: str | None) -> int | None:
    entry = _read_bytes(_index_path(log_path, TIME_INDEX_SUFFIX), -TIME_ENTRY.itemsize)
    if len(entry) != TIME_ENTRY.itemsize:
        return None
    timestamp_ms = int(np.frombuffer(entry, TIME_ENTRY)["timestamp_ms"][0])
    # Zeros are preallocated space; the last entry is somewhere before it.
    return timestamp_ms if timestamp_ms > 0 else None


def _offset_entries(log_path: str | None) -> int | None:
    path = _index_path(log_path, OFFSET_INDEX_SUFFIX)
    if path is None:
        return None
    try:
        size_bytes = os.stat(path).st_size
    except OSError:
        return None
    preallocated = size_bytes and not any(_read_bytes(path, -OFFSET_ENTRY.itemsize))
    return None if preallocated else size_bytes // OFFSET_ENTRY.itemsize


def _index_path(log_path: str | None, suffix: str) -> str | None:
    if log_path is None or not log_path.endswith(LOG_SUFFIX):
        return None
    return log_path.removesuffix(LOG_SUFFIX) + suffix


def _read_bytes(path: str | None, count: int) -> bytes:
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

    `columns` determines how report rows are counted. `about` has facts about the run, for the
    footer.
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
        self._page_tables: list[pa.Table] = []
        self._page_row_count = self._report_row_count = 0
        self._segments: Iterable[pa.RecordBatch] = ()
        self._conclusion: Conclusion | None = None
        self._is_complete = True

    def write_table(self, table: pa.Table) -> None:
        severities = row_severities(table, self._columns)
        findings = row_findings(table, self._columns)
        self._count_findings(table, findings, severities.to_numpy())
        self._report_row_count += len(table)
        table = table.append_column(FOUND, findings).append_column(SEVERITY, severities)
        max_page_rows = max(MAX_ROWS - self._page_row_count, 0)
        if len(table) > max_page_rows:
            bad_rows = table.filter(pc.greater(severities, int(Severity.GOOD)))
            max_bad_rows = max(2 * MAX_ROWS - self._page_row_count, 0)
            table = (
                table.slice(0, max_page_rows)
                if not bad_rows.num_rows
                else bad_rows.slice(0, max_bad_rows)
            )
        if not len(table):
            return
        if self._columns.rows_are_segments:
            base_timestamps = first_timestamps(table["log_path"].to_pylist())
            table = table.append_column(FIRST_TIMESTAMP, base_timestamps)
        self._page_tables.append(table)
        self._page_row_count += len(table)

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments; their files are read when the page is written."""
        self._segments = segments

    def finish(self, conclusion: Conclusion) -> None:
        """Set the conclusion of the run."""
        self._conclusion = conclusion

    def interrupt(self) -> None:
        """Record that the run was interrupted, so that the page has no conclusion."""
        self._conclusion, self._is_complete = None, False

    def close(self) -> None:
        text = PageText(self._command, self._columns, self._totals, self._about, self._conclusion)
        rows = self._page_rows()
        page_tables = [PageTable("rows", pack_columns(rows), len(rows), self._report_row_count)]
        # Free the memory of the rows, whose columns are packed now.
        self._page_tables, rows = [], None
        if not self._columns.rows_are_segments:
            batches = [
                to_segment_batch(batch, reading=self._is_complete) for batch in self._segments
            ]
            segments = pa.Table.from_batches(batches, SEGMENT_SCHEMA)
            page_segments = segments.slice(0, MAX_ROWS)
            page_tables.append(
                PageTable(
                    "segments", pack_columns(page_segments), len(page_segments), len(segments)
                )
            )
        with open(self._path, "w", encoding="utf-8") as file:
            file.writelines(text.lines(page_tables, self._folder))

    def _count_findings(
        self, table: pa.Table, findings: pa.ChunkedArray, severities: NDArray[np.int8]
    ) -> None:
        totals = self._totals
        units = counted_row_mask(table, self._columns).to_numpy()
        weights = row_weights(table, self._columns)
        for severity, counter in ((None, totals.counts), (Severity.BAD, totals.bad_counts)):
            is_counted = pa.array(units if severity is None else units & (severities == severity))
            groups = pa.table({"found": findings, "weight": weights}).filter(is_counted)
            sums = groups.group_by("found").aggregate([("weight", "sum")])
            for row in sums.to_pylist():
                counter[row["found"]] += row["weight_sum"]

    def _page_rows(self) -> pa.Table:
        if self._page_tables:
            return pa.concat_tables(self._page_tables)
        schema = self._schema.append(pa.field(FOUND, pa.string()))
        return schema.append(pa.field(SEVERITY, pa.int8())).empty_table()


#: Columns with larger integers use BigInt in JavaScript. Up to this limit, the zigzag-encoded
#: difference of two integers is exact as a JavaScript number.
_MAX_EXACT_INTEGER = 1 << 51
_MILLISECONDS = 1000
# Placeholder in a path for the base offset in 20 digits; paths cannot contain it.
_BASE_OFFSET = "\0"
_FAST_LEVEL, _BEST_LEVEL = 1, 9
_SCRIPTS = ("bokeh", "bokeh-widgets", "bokeh-tables", "bokeh-api")
_OWN_SCRIPTS = ("columns.js", "charts.js", "coverage.js", "plots.js", "table.js", "page.js")


@dataclass(slots=True)
class Totals:
    """The number of units, such as segments, by finding; for all rows, and for bad rows only."""

    counts: Counter[str] = field(default_factory=Counter)
    bad_counts: Counter[str] = field(default_factory=Counter)


def row_findings(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    """Return the finding by which each report row is counted."""
    values = [table[name] for name in columns.found_in]
    return pc.coalesce(*values, pa.scalar("", pa.string()))


def row_severities(table: pa.Table, columns: PageColumns) -> pa.Array:
    """Return the `Severity` of each row, as int8."""
    severities = np.full(len(table), int(Severity.GOOD), np.int8)
    for name in columns.found_in:
        np.maximum(severities, _value_severities(table[name], columns), out=severities)
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


def counted_row_mask(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    """Return a mask of the report rows that are counted."""
    if columns.units is None:
        return pa.chunked_array([pa.repeat(pa.scalar(value=True), len(table))])
    if not columns.unit_values:
        return table[columns.units].is_valid()
    return pc.is_in(table[columns.units], pa.array(columns.unit_values, pa.string()))


def row_weights(table: pa.Table, columns: PageColumns) -> pa.ChunkedArray:
    if columns.weight is None:
        return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(table))])
    return table[columns.weight]


def _value_severities(column: pa.ChunkedArray, columns: PageColumns) -> NDArray[np.int8]:
    """Return the severity of each value: null is good, an unknown value is notable."""
    names = pa.array(columns.meanings, pa.string())
    # The last item, at index -1, is for unknown values.
    known_severities = [int(meaning.severity) for meaning in columns.meanings.values()]
    severity_by_index = np.array([*known_severities, int(Severity.NOTABLE)], np.int8)
    value_indices = pc.fill_null(pc.index_in(column, names), -1).to_numpy()
    severities: NDArray[np.int8] = severity_by_index[value_indices]
    severities[column.is_null().to_numpy()] = Severity.GOOD
    return severities


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """A column of a page: base64 data, and the header that describes its encoding."""

    header: dict[str, object]
    payloads: tuple[str, ...]


def pack_columns(table: pa.Table) -> list[PackedColumn]:
    """Pack the columns of a table; columns without values are omitted.

    Floating-point columns are rounded to thousandths. In path columns, a placeholder replaces the
    base offset of the row in 20 digits.
    """
    integers: dict[str, Longs] = {}
    packed = []
    for name in table.column_names:
        column = table[name]
        if len(column) and column.null_count == len(column):
            continue
        column_type = column.type
        if pa.types.is_string(column_type):
            packed.append(_pack_text_column(name, column, integers.get("segment_base_offset")))
            continue
        scale = 1
        if pa.types.is_boolean(column_type):
            column = column.cast(pa.int8())
        elif pa.types.is_floating(column_type):
            scale = _MILLISECONDS
            column = pc.round(pc.multiply(column, float(scale)))
        values = pc.fill_null(column.cast(pa.int64(), safe=False), 0).to_numpy()
        header, payloads = _encode_integers(values, integers)
        if column.null_count:
            header["nulls"] = True
            null_bits = np.packbits(column.is_null().to_numpy(), bitorder="little")
            payloads += (_encode_payload(null_bits.tobytes()),)
        if not header["wide"]:
            integers[name] = values
        column_form = "boolean" if pa.types.is_boolean(column_type) else "integer"
        packed.append(
            PackedColumn({"name": name, "form": column_form, "scale": scale, **header}, payloads)
        )
    return packed


def _encode_integers(
    values: Longs, base_columns: Mapping[str, Longs]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Encode integers in the way that compresses best.

    The encoded integers are the values, the differences from the previous value, or the differences
    from another column. In the header, ``relative`` is null, empty, or the name of this column,
    respectively.
    """
    is_bigint = _needs_bigint(values)
    codings: dict[str | None, Longs] = {None: values, "": np.diff(values, prepend=np.int64(0))}
    if not is_bigint:
        codings |= {name: values - base_values for name, base_values in base_columns.items()}
    planes = {name: _split_byte_planes(coded) for name, coded in codings.items()}
    smallest = min(planes, key=lambda name: len(zlib.compress(planes[name][1], _FAST_LEVEL)))
    width, encoded = planes[smallest]
    header: dict[str, object] = {"width": width, "wide": is_bigint, "relative": smallest}
    return header, (_encode_payload(encoded),)


def _needs_bigint(values: Longs) -> bool:
    return len(values) > 0 and bool(
        values.max() > _MAX_EXACT_INTEGER or values.min() < -_MAX_EXACT_INTEGER
    )


def _split_byte_planes(values: Longs) -> tuple[int, bytes]:
    zigzag = ((values << 1) ^ (values >> 63)).astype("<i8")
    planes = zigzag.view(np.uint8).reshape(-1, 8).T
    nonzero_planes = np.flatnonzero(planes.any(axis=1))
    width = int(nonzero_planes[-1]) + 1 if len(nonzero_planes) else 1
    return width, np.ascontiguousarray(planes[:width]).tobytes()


def _pack_text_column(
    name: str, column: pa.ChunkedArray, base_offsets: Longs | None
) -> PackedColumn:
    if base_offsets is not None and name.endswith("path"):
        column = pa.chunked_array([_replace_base_offsets(column, base_offsets)])
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = pc.fill_null(encoded.indices, -1).cast(pa.int64()).to_numpy()
    header, payloads = _encode_integers(codes, {})
    texts = json.dumps(encoded.dictionary.to_pylist()).encode()
    return PackedColumn(
        {"name": name, "form": "text", **header}, (*payloads, _encode_payload(texts))
    )


def _replace_base_offsets(column: pa.ChunkedArray, base_offsets: Longs) -> pa.Array:
    texts = (
        text if text is None else text.replace(f"{base:0{OFFSET_DIGITS}d}", _BASE_OFFSET)
        for text, base in zip(column.to_pylist(), base_offsets.tolist(), strict=True)
    )
    return pa.array(texts, pa.string())


def _encode_payload(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _BEST_LEVEL, mtime=0)).decode()


def bokeh_folder(report: str) -> Path:
    """Return the folder of the package bokeh, without importing the package.

    Raises `InputError` with the path of the report if Bokeh is not installed.
    """
    spec = importlib.util.find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "HTML reports require the Python package bokeh, which is not installed",
            path=report,
            hint="run `pip install 'kafka-index[html]'`",
        )
    return Path(spec.submodule_search_locations[0])


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page: ``rows`` or ``segments``; `all_rows` includes rows not in the page."""

    name: str
    columns: Sequence[PackedColumn]
    rows: int
    all_rows: int


class PageText:
    """The text of a page; if `conclusion` is None, the run was interrupted."""

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

    def lines(self, page_tables: Sequence[PageTable], bokeh: Path) -> Iterator[str]:
        folder = bokeh / "server" / "static" / "js"
        # The scripts are in the order in which a page runs them.
        libraries = [(folder / f"{name}.min.js").read_bytes() for name in _SCRIPTS]
        script = "".join(map(_read_static, _OWN_SCRIPTS))
        yield from self._head([script.encode(), *libraries])
        yield from self._header(page_tables)
        yield _read_static("body.html")
        yield from self._footer(bokeh)
        for number, library in enumerate(libraries):
            yield _data_script(
                f"library-{number}", base64.b64encode(gzip.compress(library, 9)).decode()
            )
        for page_table in page_tables:
            for number, column in enumerate(page_table.columns):
                for payload_number, payload in enumerate(column.payloads):
                    yield _data_script(f"{page_table.name}-{number}-{payload_number}", payload)
        yield _json_script("description", self._description(page_tables, len(libraries)))
        yield f"<script>{script}</script>\n</body>\n</html>\n"

    def _head(self, scripts: Sequence[bytes]) -> Iterator[str]:
        digests = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts)
        allowed_scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
        policy = (
            f"default-src 'none'; script-src {allowed_scripts}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        yield f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty icon, so that browsers do not request an icon.
        yield '<link rel="icon" href="data:,">\n'
        yield f"<title>kafka-index {escape(self._command)}</title>\n"
        yield f"<style>{_read_static('page.css')}</style>\n</head>\n<body>\n"

    def _header(self, page_tables: Sequence[PageTable]) -> Iterator[str]:
        columns, totals = self._columns, self._totals
        so_far = f"interrupted; {columns.nouns} so far: {totals.counts.total():,}"
        conclusion = self._conclusion or Conclusion(BAD, so_far)
        severity, text = conclusion.severity, conclusion.text
        yield f'<header class="{severity.name.lower()}"><p>kafka-index {escape(self._command)}</p>'
        yield f'<h1 id="verdict">{escape(text)}</h1>'
        if conclusion.next_command is not None:
            yield f"<p>next: <code>{escape(conclusion.next_command)}</code></p>"
        yield "</header>\n<main>\n"
        for page_table in page_tables:
            if page_table.rows < page_table.all_rows:
                yield (
                    f'<p class="omitted">This page has {page_table.rows:,} of '
                    f"{page_table.all_rows:,} {escape(page_table.name)}; rows that need attention "
                    "have priority. A report in Parquet contains all "
                    f"{escape(page_table.name)}.</p>\n"
                )
        yield '<section><h2>Findings</h2>\n<table id="found"><thead><tr><th>finding</th>'
        yield f"<th>{escape(columns.nouns)}</th><th>bad</th><th>meaning</th></tr></thead><tbody>\n"
        names = [*columns.meanings, *sorted(set(totals.counts) - set(columns.meanings))]

        def sort_key(name: str) -> tuple[bool, int]:
            meaning = columns.meanings.get(name)
            return not totals.bad_counts[name], -int(meaning.severity if meaning else NOTABLE)

        for name in sorted(filter(totals.counts.get, names), key=sort_key):
            meaning = columns.meanings.get(name)
            yield (
                f'<tr><th scope="row"><button data-found="{escape(name)}">{escape(name)}</button>'
                f"</th><td>{totals.counts[name]:,}</td><td>{totals.bad_counts[name] or '':}</td>"
                f"<td>{escape('' if meaning is None else meaning.text)}</td></tr>\n"
            )
        yield "</tbody></table></section>\n"

    def _footer(self, bokeh: Path) -> Iterator[str]:
        yield "</main>\n<footer><dl>"
        for name, text in self._about.items():
            yield f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        # The license must accompany the scripts.
        licence = (bokeh / "LICENSE.txt").read_text(encoding="utf-8")
        yield "</dl>\n<details><summary>License of Bokeh "
        yield f"{escape(version('bokeh'))}, which draws the plots and the table</summary>"
        yield f"<pre>{escape(licence)}</pre></details></footer>\n"

    def _description(self, page_tables: Sequence[PageTable], libraries: int) -> dict[str, object]:
        columns = self._columns
        return {
            "command": self._command,
            "nouns": columns.nouns,
            "libraries": libraries,
            "plots": [asdict(plot) for plot in columns.plots],
            "explained": {
                name: {
                    "severity": int(meaning.severity),
                    "text": meaning.text,
                    "command": meaning.command,
                }
                for name, meaning in columns.meanings.items()
            },
            "parts": {
                page_table.name: {
                    "rows": page_table.rows,
                    "columns": [
                        {**column.header, "payloads": len(column.payloads)}
                        for column in page_table.columns
                    ],
                }
                for page_table in page_tables
            },
        }


@cache
def _read_static(name: str) -> str:
    return (files("kafka_index.cli.html") / "static" / name).read_text(encoding="utf-8")


def _data_script(name: str, payload: str) -> str:
    return f'<script type="text/plain" id="{name}">{payload}</script>\n'


def _json_script(name: str, value: object) -> str:
    # HTML has no escapes in scripts, so no text may contain the end tag of the script.
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
