"""An import on Spark, which shuffles: journal, import, and what is in its place."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.execution import Engine, Listener
from kafka_index.storage import DirectoryLock
from kafka_index.writing.import_record import (
    digest_of_import,
    finished_import,
    imported_by,
    journal,
)
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.local_import import AFTER_FAILURE, OnPartition
from kafka_index.writing.table_files import TableFile


def import_on_spark(
    engine: Engine,
    files: Sequence[TableFile],
    root: str,
    settings: ImportSettings,
    properties: dict[str, str],
    on_partition: OnPartition,
    listener: Listener,
) -> bool:
    """Import files of records into a data directory, as `import_files` does.

    The properties are those of the settings, as they were given.
    """
    digest = digest_of_import(files, settings)
    os.makedirs(root, exist_ok=True)
    # A running broker is refused before anything is written, and again by the job.
    with DirectoryLock.of_data_directories([root]):
        finished = finished_import(root, digest, settings.mode)
    if not finished:
        try:
            with journal(root, digest, settings) as continued:
                _import(engine, files, root, continued, properties, listener)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            # As a local import would have it: the table cannot be imported.
            raise InputError(error.message, hint="nothing was imported") from error
        for partition, counts in imported_by(root, continued.run_id).items():
            on_partition(partition, counts)
    for partition, counts in finished.items():
        on_partition(partition, counts)
    return not finished


def _import(
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
        after_failure=AFTER_FAILURE,
        inputs=[each.path for each in files],
        outputs=[root],
    ) as workers:
        listener.on_begin()
        import_tables(workers, files, root, settings, properties)
