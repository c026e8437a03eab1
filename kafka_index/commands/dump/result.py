"""The result of ``dump``: printed files, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from kafka_index.commands.dump.rows import RowPrinter, SelectedRows, Selection
from kafka_index.core.errors import Faults, KafkaIndexError, plural
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.result import BAD, Result, RunOutcome, Section
from kafka_index.core.query.record_stream import decode_counts, decode_section

#: Prints a file or directory; returns its errors.
Dump = Callable[[SelectedRows], Iterable[KafkaIndexError]]
_SCHEMA = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("reason", pa.string())])


class DumpResult(Result):
    """Files and directories by path; `print_rows` prints them and collects errors."""

    command = "dump"

    def __init__(
        self, dumps: Sequence[tuple[str, Dump]], selection: Selection, *, follows_links: bool
    ) -> None:
        self._dumps, self._selection, self._follows_links = dumps, selection, follows_links
        self._rows: list[dict[str, object]] = []
        self._faults = Faults()
        self._notes: tuple[str, ...] = ()
        self._unread: tuple[str, ...] = ()
        self.decode_errors: Mapping[str, int] = {}

    def print_rows(self, printer: RowPrinter) -> None:
        output = SelectedRows(printer, self._selection)
        with reading_inputs(follow_links=self._follows_links) as unread:
            for path, dump in self._dumps:
                output.printed = 0
                faults = list(dump(output))
                self._faults.add(*faults)
                reason = str(faults[0]) if faults else None
                self._rows.append({"path": path, "rows": output.printed, "reason": reason})
        self._notes, self._unread = tuple(output.notes), unread_texts(unread)
        self.decode_errors = dict(sorted(output.decode_errors.items()))

    @property
    def headline(self) -> str:
        """The number of rows, files and errors."""
        text = f"{plural(self.counts['rows'], 'row')} of {plural(len(self._dumps), 'input')}"
        return f"{text}; {plural(self._faults.total, 'error')}" if self._faults.total else text

    @property
    def facts(self) -> Sequence[str]:
        """The time ranges of files without a row in the selected range."""
        return self._notes

    @property
    def sections(self) -> Sequence[Section]:
        """The corrupt and unreadable files, and what did not decode."""
        lines = list(map(str, self._faults.first))
        damage = Section("corrupt or unreadable:", lines, BAD, self._faults.total, "error")
        return [damage, decode_section(self.decode_errors)]

    @property
    def outcome(self) -> RunOutcome:
        """Damage for corrupt files, the environment for failed reads."""
        return RunOutcome.of_faults(self._faults.retriable).with_damage(
            (*self._unread, *self.decode_errors)
        )

    @property
    def unread(self) -> Sequence[str]:
        """Input entries that were not read, with reasons."""
        return self._unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, rows, and errors."""
        rows = sum(row["rows"] for row in self._rows if isinstance(row["rows"], int))
        return {
            "files": len(self._dumps),
            "rows": rows,
            "damaged": self._faults.total,
            **decode_counts(self.decode_errors),
        }

    def to_arrow(self) -> pa.Table:
        """Return a row per printed file."""
        return pa.Table.from_pylist(self._rows, schema=_SCHEMA)
