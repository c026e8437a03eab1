"""Where answers go: a file, or a folder of parts, that appears whole or not at all.

Everything is written into a hidden folder beside the output, ``.NAME.<run id>.tmp``, and renamed at
the end. A killed run leaves the old output as it was, and that folder, which the next run removes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from kafka_index.errors import PublishError
from kafka_index.lookup.answers.joining import join_parts
from kafka_index.lookup.answers.output_path import names_file, refuse_existing
from kafka_index.lookup.answers.swapping import ASIDE, exchange
from kafka_index.lookup.conversion.converter import check_conversion
from kafka_index.lookup.queries.opening import Queries
from kafka_index.lookup.queries.query_files import COMPRESSIONS, QueryFormat
from kafka_index.lookup.queries.query_piece import QueryPiece
from kafka_index.storage import DirectoryLock, local_path, publish_error, refuse_overlap
from kafka_index.storage.durability import make_durable

#: What Spark, too, leaves in a folder that is whole.
SUCCESS = "_SUCCESS"
_PART = "part-{number:0{digits}}-{stem}{ending}"
_LEAST_DIGITS = 5
_MOST_STEM_BYTES = 100
# What the first bytes of a character that is cut are decoded to.
_CUT_CHARACTER = "".join(map(chr, range(0xDC80, 0xDD00)))
_WHOLE = "whole"


class AnswerTarget:
    """The output of a run.

    Parameters
    ----------
    path : str
        One file when it ends like its format (``.parquet``, ``.csv``; ``.json``, ``.jsonl``,
        ``.ndjson``), otherwise a folder with a part for each piece.
    queries : Queries
        Whose answers these are.
    output_format : QueryFormat, optional
        The format of the answers; None: that of the queries.
    inputs : iterable of str
        Paths and globs that are read, besides the queries: the output must not overlap them.
    overwrite : bool
        Whether an output that is there is replaced.

    Raises
    ------
    InputError
        The path says another format, overlaps an input, or is there already; or the format
        cannot hold the columns of the queries.

    Notes
    -----
    A context manager, for the driver; entering it raises PublishError when the output cannot be
    written or another run is writing it. Left without `publish`, all that was written is removed.
    """

    def __init__(
        self,
        path: str,
        queries: Queries,
        *,
        output_format: QueryFormat | None = None,
        inputs: Iterable[str] = (),
        overwrite: bool = False,
    ) -> None:
        self._given = path
        self.path = os.path.abspath(local_path(path))
        self.format = output_format or queries.format
        self.is_file = names_file(path, self.format, was_chosen=output_format is not None)
        check_conversion(queries, self.format, path=path)
        self._queries = queries
        self._overwrite = overwrite
        folder, name = os.path.split(self.path)
        self._run_id = os.urandom(8).hex()
        self._staging = os.path.join(folder, f".{name}.{self._run_id}.tmp")
        self._leftover = re.compile(
            rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp(?P<aside>{re.escape(ASIDE)})?"
        )
        self._stack = ExitStack()
        refuse_overlap(self.path, path, [queries.path, *queries.files, *inputs])
        self._refuse_existing()

    def __enter__(self) -> Self:
        """Lock the output, remove what killed runs left, and make room for the parts."""
        folder, name = os.path.split(self.path)
        try:
            os.makedirs(folder, exist_ok=True)
            self._stack.enter_context(
                DirectoryLock([folder], file_name=f".{name}.kafka-index.lock")
            )
            self._sweep()
            os.mkdir(self._staging)
        except OSError as error:
            self._stack.close()
            raise publish_error(error, self.path, "write the output") from error
        except BaseException:
            self._stack.close()
            raise
        self._stack.callback(shutil.rmtree, self._staging, ignore_errors=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not published, and give the lock back."""
        self._stack.close()

    @property
    def whole_path(self) -> str:
        """Where all answers can be written as one file, in order, instead of parts."""
        return os.path.join(self._staging, _WHOLE + os.path.splitext(self.path)[1])

    def part_path(self, piece: QueryPiece) -> str:
        """Return the path of the part with the answers to a piece."""
        name = os.path.basename(piece.path)
        while os.path.splitext(name)[1].lower() in (*COMPRESSIONS, *piece.format.endings):
            name = os.path.splitext(name)[0]
        part = _PART.format(
            number=piece.number,
            digits=max(_LEAST_DIGITS, len(str(len(self._queries.pieces)))),
            stem=os.fsdecode(os.fsencode(name)[:_MOST_STEM_BYTES]).rstrip(_CUT_CHARACTER),
            ending=self.format.endings[0],
        )
        return os.path.join(self._staging, part)

    def publish(self, rows_of_piece: Mapping[int, int]) -> None:
        """Check that every query has its answer, and let the output appear.

        Parameters
        ----------
        rows_of_piece : mapping of int to int
            Answers written for each piece, by its number: `LookupTotals.rows_of_piece`.

        Raises
        ------
        PublishError
            A part is missing or has another number of answers, or the output cannot be put in
            place; the old one, if any, is as it was.
        """
        self._check_counts(rows_of_piece)
        try:
            if self.is_file:
                self._publish_file()
            else:
                self._publish_folder()
        except OSError as error:
            raise publish_error(error, self.path, "put the output in place") from error

    def _sweep(self) -> None:
        """Remove what killed runs left; but an output that one had put aside comes back."""
        folder = os.path.dirname(self.path)
        for name in os.listdir(folder):
            found = self._leftover.fullmatch(name)
            if found is None or not os.path.isdir(os.path.join(folder, name)):
                continue
            if found["aside"] and not os.path.lexists(self.path):
                os.rename(os.path.join(folder, name), self.path)
                self._refuse_existing()
            else:
                shutil.rmtree(os.path.join(folder, name))

    def _publish_file(self) -> None:
        whole = self.whole_path
        if not os.path.exists(whole):
            parts = self._parts()
            whole = parts[0] if len(parts) == 1 else join_parts(parts, whole, self.format)
        self._make_durable([whole])
        # Refused again: another program may have put something there meanwhile.
        self._refuse_existing()
        os.replace(whole, self.path)
        self._make_durable([os.path.dirname(self.path)])

    def _publish_folder(self) -> None:
        parts = {os.path.basename(part) for part in self._parts()}
        for name in os.listdir(self._staging):
            if name not in parts:  # what a task that was given up may still write
                os.unlink(os.path.join(self._staging, name))
        with open(os.path.join(self._staging, SUCCESS), "xb"):
            pass
        self._make_durable([self._staging])
        self._refuse_existing()
        if not os.path.isdir(self.path):
            os.rename(self._staging, self.path)
        else:
            exchange(self._staging, self.path)
        self._make_durable([os.path.dirname(self.path)])

    def _make_durable(self, paths: list[str]) -> None:
        for path, error in make_durable(paths).items():
            raise publish_error(error, path, "make the output durable") from error

    def _parts(self) -> list[str]:
        parts = [self.part_path(piece) for piece in self._queries.pieces]
        for part in parts:
            if not os.path.isfile(part):
                raise PublishError("a part of the answers is missing", path=part, hint="run again")
        return parts

    def _check_counts(self, rows_of_piece: Mapping[int, int]) -> None:
        for piece in self._queries.pieces:
            rows = rows_of_piece.get(piece.number)
            if rows is None or (piece.rows is not None and rows != piece.rows):
                raise PublishError(
                    "not every query has one answer",
                    path=piece.path,
                    expected="some" if piece.rows is None else piece.rows,
                    found="none" if rows is None else rows,
                    hint="nothing was written: run again",
                )

    def _refuse_existing(self) -> None:
        refuse_existing(self.path, self._given, is_file=self.is_file, overwrite=self._overwrite)
