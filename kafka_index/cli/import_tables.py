"""An import on threads or on Spark, which shuffles: journal, import, and what is in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.execution import Engine, Listener
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import DirectoryLock
from kafka_index.writing.import_record import (
    ImportCounts,
    digest_of_import,
    finished_import,
    imported_by,
    journal,
)
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.import_target import ImportTarget
from kafka_index.writing.local_import import import_sorted
from kafka_index.writing.table_files import TableFile, sorted_records

_AFTER_FAILURE = "run again to continue"

OnPartition = Callable[[TopicPartition, ImportCounts], None]


def run_import(
    engine: Engine,
    files: Sequence[TableFile],
    root: str,
    settings: ImportSettings,
    properties: dict[str, str],
    listener: Listener,
    on_partition: OnPartition,
) -> bool:
    """Import files of records into a data directory.

    Parameters
    ----------
    files : sequence of TableFile
        One at least.
    root : str
        An absolute local path.
    settings : ImportSettings
        How; `properties` are the same as they were given.
    listener : Listener
        Follows the work.
    on_partition : callable
        Called with each partition that is in its place.

    Returns
    -------
    bool
        Whether anything was to do: an import that has finished is not run again.
    """
    digest = digest_of_import(files, settings)
    if not engine.on_spark:
        with (
            engine.start("import", after_failure=_AFTER_FAILURE, listener=listener) as workers,
            ImportTarget(root, settings.mode) as target,
        ):
            finished = finished_import(root, digest, settings.mode)
            if not finished:
                with journal(root, digest, settings) as continued:
                    _import_here(workers.count, files, target, continued, on_partition)
    else:
        os.makedirs(root, exist_ok=True)
        # A running broker is refused before anything is written, and again by the job.
        with DirectoryLock.of_data_directories([root]):
            finished = finished_import(root, digest, settings.mode)
        if not finished:
            try:
                with journal(root, digest, settings) as continued:
                    _import_on_spark(engine, files, root, continued, properties, listener)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                # As a local import would have it: the table is not one that can be imported.
                raise InputError(error.message, hint="nothing was imported") from error
            for partition, counts in imported_by(root, continued.run_id).items():
                on_partition(partition, counts)
    for partition, counts in finished.items():
        on_partition(partition, counts)
    return not finished


def _import_here(
    threads: int,
    files: Sequence[TableFile],
    target: ImportTarget,
    settings: ImportSettings,
    on_partition: OnPartition,
) -> None:
    batches = sorted_records(files, settings, threads=threads)
    import_sorted(
        batches,
        target,
        settings,
        lambda each: on_partition(each.staged.partition, each.counts),
        threads=threads,
    )
    # While the journal is there: without it the run is not continued.
    target.remove_staging()


def _import_on_spark(
    engine: Engine,
    files: Sequence[TableFile],
    root: str,
    settings: ImportSettings,
    properties: dict[str, str],
    listener: Listener,
) -> None:
    from kafka_index.spark.import_tables import import_tables  # noqa: PLC0415, PySpark

    with engine.start(
        "import",
        after_failure=_AFTER_FAILURE,
        inputs=[each.path for each in files],
        outputs=[root],
    ) as workers:
        listener.on_begin()
        import_tables(workers, files, root, settings, properties)
