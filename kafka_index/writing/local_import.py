"""An import by threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.writing.import_columns import partitions_of
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.import_target import ImportTarget
from kafka_index.writing.partition_import import ImportedPartition, PartitionImport


def import_sorted(
    batches: Iterable[pa.RecordBatch],
    target: ImportTarget,
    settings: ImportSettings,
    on_partition: Callable[[ImportedPartition], None],
) -> None:
    """Import records that come partition by partition; each is published once it is complete.

    Parameters
    ----------
    batches : iterable of pa.RecordBatch
        Records by topic, partition and offset.
    target : ImportTarget
        Where to.
    settings : ImportSettings
        How.
    on_partition : callable
        Called with each partition that has been published.

    Raises
    ------
    InputError
        A record cannot be written, or there is none. Partitions before its own are there.
    """
    current: PartitionImport | None = None
    count = 0

    def finish(partition: PartitionImport) -> None:
        imported = partition.finish()
        target.publish(imported)
        on_partition(imported)

    try:
        for batch in batches:
            for partition, rows in partitions_of(batch):
                if current is None or current.partition != partition:
                    if current is not None:
                        finish(current)
                    current = None
                    current = PartitionImport(target.root, target.staging, partition, settings)
                    count += 1
                current.append(rows)
        if current is not None:
            finish(current)
            current = None
    finally:
        if current is not None:
            current.abort()
    if not count:
        raise InputError("the input has no records")
    target.remove_others()
