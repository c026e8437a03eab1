"""Imports on either engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.storage import DirectoryLock
from kafka_index.writing.import_journal import digest_of_import, journal
from kafka_index.writing.import_record import ImportCounts, counts_of_run
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.import_target import ImportTarget, partition_names
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
) -> None:
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
    """
    if not engine.on_spark:
        listener.on_begin()
        digest = digest_of_import(files, settings)
        with (
            ImportTarget(root, settings.mode) as target,
            journal(root, digest, settings) as continued,
        ):
            batches = sorted_records(files, settings, threads=engine.threads)
            import_sorted(
                batches,
                target,
                continued,
                lambda each: on_partition(each.staged.partition, each.counts),
                threads=engine.threads,
            )
            # While the journal is there: without it the run is not continued.
            target.remove_staging()
        return
    os.makedirs(root, exist_ok=True)
    # A running broker is refused before anything is written, and again by the job.
    with DirectoryLock.of_data_directories([root]):
        digest = digest_of_import(files, settings)
    try:
        with journal(root, digest, settings) as continued:
            _import_on_spark(engine, files, root, continued, properties, listener)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        # As a local import would have it: the table is not one that can be imported.
        raise InputError(error.message, hint="nothing was imported") from error
    for name in partition_names(root):
        counts = counts_of_run(os.path.join(root, name), continued.run_id)
        partition = parse_partition_directory(name)
        if counts is not None and partition is not None:
            on_partition(partition, counts)


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
        open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target([root]) as target,
        Jobs(session) as jobs,
    ):
        inputs = [each.path for each in files]
        prepare_executors(session, jobs, target, inputs=inputs, outputs=[root])
        listener.on_begin()
        import_tables(session, files, root, settings, properties, jobs=jobs)
