"""Tables of any size, sorted by DuckDB, which sorts on disk what does not fit in its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import pyarrow as pa

from kafka_index.errors import InputError, PublishError
from kafka_index.storage.workspace import workspace
from kafka_index.stores.durable_files import publish_error

_MEMORY = "1GB"
_NEEDED_FILES = 16


def sorted_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    order: Sequence[str],
    *,
    rows: str,
    batch_rows: int,
    threads: int,
    nulls_first: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches, ordered by some columns.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        Rows of `schema`; an error that ends them is raised as it is.
    order : sequence of str
        Names of columns.
    rows : str
        Names the rows in errors.
    batch_rows : int
        Rows of a batch, about.

    Raises
    ------
    InputError
        DuckDB refuses the rows.
    PublishError
        There is no room to sort.
    """
    # It takes a while, and few commands need it.
    import duckdb  # noqa: PLC0415

    folder = os.path.join(workspace(), "sort")
    _refuse_few_files(folder, rows)
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": _MEMORY,
        "threads": threads,
        "temp_directory": folder,
    }
    checked = _Checked(batches)
    reader = pa.RecordBatchReader.from_batches(schema, checked)
    place = "NULLS FIRST" if nulls_first else "NULLS LAST"
    quoted = ('"' + name.replace('"', '""') + '"' for name in order)
    terms = ", ".join(f"{name} {place}" for name in quoted)
    with closing(duckdb.connect(":memory:", config=options)) as connection:
        connection.register("unsorted", reader)
        try:
            query = f"SELECT * FROM unsorted ORDER BY {terms}"  # noqa: S608, the names are quoted
            for batch in connection.sql(query).to_arrow_reader(batch_rows):
                checked.check()
                yield batch
            checked.check()
        except duckdb.OutOfMemoryException as error:
            raise PublishError(
                f"cannot sort the {rows}: {error}", path=folder, hint="give TMPDIR more room"
            ) from error
        except (duckdb.IOException, duckdb.FatalException, duckdb.InternalException) as error:
            raise PublishError(
                f"cannot sort the {rows}: {error}", path=folder, hint="check TMPDIR and its disk"
            ) from error
        except duckdb.Error as error:
            raise InputError(f"cannot sort the {rows}: {error}") from error


def _refuse_few_files(folder: str, rows: str) -> None:
    """Raise PublishError where few files can be opened: DuckDB would abort the process."""
    with ExitStack() as stack:
        try:
            for _ in range(_NEEDED_FILES):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise publish_error(error, folder, f"sort the {rows}") from error


class _Checked:
    """The batches that DuckDB sorts, up to the first error, which never passes through DuckDB."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:  # noqa: BLE001, because what it is decides `check`
            self._error = error

    def check(self) -> None:
        """Raise the error that has ended the batches, if there was one."""
        if self._error is not None:
            raise self._error
