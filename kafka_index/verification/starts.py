"""What a broker makes of a partition that has something harmful, predicted with its own loader."""

from __future__ import annotations

from dataclasses import replace

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.growing.settings import LogSettings
from kafka_index.layout.names import TopicPartition
from kafka_index.startup.found_files import find_files
from kafka_index.startup.lost_records import lost_records
from kafka_index.startup.partition_loading import Loading, load_partition
from kafka_index.stores import is_remote
from kafka_index.verification.data_directory import DataDirectory
from kafka_index.verification.findings import Finding
from kafka_index.verification.settings import VerifySettings


def started(
    row: Finding, root: DataDirectory, settings: VerifySettings, end_offset: int
) -> Finding:
    """Return the row of a partition with what a start does to it as it lies.

    Parameters
    ----------
    row : Finding
        Of the partition; its path is the directory.
    root : DataDirectory
        What its checkpoints and the marker say.
    settings : VerifySettings
        Of the run.
    end_offset : int
        Where its batches end.
    """
    if is_remote(row.path) or row.topic is None or row.partition is None:
        return row
    partition = TopicPartition(row.topic, row.partition)
    config = settings.config.for_topic(row.topic)
    loading = Loading(
        root.is_clean,
        root.recovery_point(partition),
        root.log_start_offset(partition),
        LogSettings(
            index_interval_bytes=config.index_interval_bytes,
            segment_index_bytes=config.index_size_max_bytes,
            producer_id_expiration_ms=settings.config.producer_id_expiration_ms,
        ),
        lambda: settings.now_ms,
    )
    marker = "With the marker that lies here" if root.is_clean else "Without the marker"
    try:
        files = find_files(partition, row.path)
        with load_partition(row.path, files, loading) as loaded:
            visible_from = loading.log_start_offset
            lost, _ = lost_records(loaded, files.replaced, files.replaced_end, visible_from)
            start, end = loaded.log.log_start_offset, loaded.log.log_end_offset
    except KafkaIndexError as error:
        if is_retriable(error):
            return row
        return replace(row, effect=f"{marker} a broker does not start: {error.message}.")
    text = f"{marker} a broker serves offsets {start} to {end}"
    if lost.records:
        text += (
            f", and loses or hides {lost.records} records from offset {lost.first_offset} to "
            f"{lost.last_offset}"
        )
    return replace(row, effect=f"{text}.", expected=f"offsets up to {end_offset}")
