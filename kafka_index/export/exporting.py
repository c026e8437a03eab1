"""Exporting: splits of records into data files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

from kafka_index.errors import CorruptLogError, KafkaIndexError, PublishError, is_retriable
from kafka_index.execution import Waves, Workers
from kafka_index.export.log_history import ExportedBatch
from kafka_index.export.partition_export import SplitWork
from kafka_index.export.partition_folder import remove_data_files
from kafka_index.export.report import LeftOut, SplitResult
from kafka_index.export.settings import ExportSettings
from kafka_index.export.split_files import SplitFiles
from kafka_index.tables import RecordReader

_MAX_LEFT_OUT = 20


def export_splits(
    workers: Workers, works: Sequence[SplitWork], settings: ExportSettings
) -> Generator[SplitResult, None, None]:
    """Export splits, and yield their results as they are finished.

    Raises
    ------
    PublishError
        The output cannot be written.
    """
    return workers.run(
        works,
        partial(_export_split, settings=settings),
        sizes=[work.split.size_bytes for work in works],
        what="export {:,} splits of records",
        waves=Waves.KEPT,
    )


def _export_split(work: SplitWork, attempt_id: str, *, settings: ExportSettings) -> SplitResult:
    """Export a split into data files, each of which appears whole and durable."""
    settings = replace(settings, is_staged=work.is_staged)
    try:
        if work.is_repeated and (kept := _kept_files(work, settings)) is not None:
            return kept
        damage = _Damage()
        with SplitFiles(work.folder, settings, f"{attempt_id}_{work.number}") as files:
            reader = RecordReader(work.split, settings.read_settings, on_left_out=damage.add)
            for batch in reader:
                files.write(batch)
            files.finish()
    except PublishError:
        raise
    except KafkaIndexError as error:
        return SplitResult(work.number, failure=LeftOut.of(error), is_retriable=is_retriable(error))
    if work.is_repeated:
        # What is in place from before holds less: it ends where the damage was.
        remove_data_files(work.folder, work.first_offset, work.end_offset, keep=files.paths)
    header = reader.last_header
    return SplitResult(
        work.number,
        files.records,
        len(files.paths),
        files.size_bytes,
        tuple(damage.first),
        damage.count,
        last_batch=None if header is None else ExportedBatch.of_header(header),
    )


class _Damage:
    """Collects the records that were left out."""

    def __init__(self) -> None:
        self.first: list[LeftOut] = []
        self.count = 0

    def add(self, error: CorruptLogError) -> None:
        self.count += 1
        if len(self.first) < _MAX_LEFT_OUT:
            self.first.append(LeftOut.of(error))


def _kept_files(work: SplitWork, settings: ExportSettings) -> SplitResult | None:
    """Return the result that leaves data files of before in place; None if they are superseded.

    They are replaced by all records of the range, never by others that may be fewer: a batch that
    was exported can be damaged by now, and a segment missing.
    """
    damage = _Damage()
    # Neither keys nor values need to be copied to be counted.
    counted = replace(settings.read_settings, columns=("offset",))
    records = sum(map(len, RecordReader(work.split, counted, on_left_out=damage.add)))
    if not damage.count:
        if work.records_before is None or records >= work.records_before:
            return None
        damage.count = 1
        damage.first.append(
            LeftOut(
                work.folder,
                None,
                f"the log holds {records} records of offsets {work.first_offset} to "
                f"{work.end_offset - 1}, of which {work.records_before} were exported: their data "
                "files are kept; export a complete copy of the log",
            )
        )
    return SplitResult(
        work.number,
        left_out=tuple(damage.first),
        left_out_count=damage.count,
        is_kept=True,
    )
