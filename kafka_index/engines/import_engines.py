"""Imports on either engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kafka_index.engines import Engine, Listener, master_of, threads_of
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import TopicPartition
from kafka_index.spark.session import open_session, prepare_executors
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
from kafka_index.writing.sorted_records import sorted_records
from kafka_index.writing.table_files import TableFile

_APP_NAME = "kafka-index import"
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
        listener.on_begin()
        with ImportTarget(root, settings.mode) as target:
            finished = finished_import(root, digest, settings.mode)
            if not finished:
                with journal(root, digest, settings) as continued:
                    _import_here(engine, files, target, continued, on_partition)
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
    engine: Engine,
    files: Sequence[TableFile],
    target: ImportTarget,
    settings: ImportSettings,
    on_partition: OnPartition,
) -> None:
    batches = sorted_records(files, settings, threads=threads_of(engine))
    import_sorted(
        batches,
        target,
        settings,
        lambda each: on_partition(each.staged.partition, each.counts),
        threads=threads_of(engine),
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
    from kafka_index.spark.import_tables import import_tables
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import shared_target

    with (
        open_session(master_of(engine), _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target([root]) as target,
        Jobs(session) as jobs,
    ):
        inputs = [each.path for each in files]
        prepare_executors(session, jobs, target, inputs=inputs, outputs=[root])
        listener.on_begin()
        import_tables(session, files, root, settings, properties, jobs=jobs)
