"""The types of decoded keys and values, found in the schemas and the records of an export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kafka_index.commands.export.partition_export import SplitWork
from kafka_index.commands.export.plan import ExportPlan
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.job.engine import Waves, Workers
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.query.records import plan_partitions
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.query.typed_records import find_writers, typed_columns
from kafka_index.core.schema.decode import DecodeOptions, TypedColumns, Writer


def find_types(
    workers: Workers, plan: ExportPlan, settings: ExportSettings, decode: DecodeOptions
) -> dict[str, TypedColumns]:
    """Return the typed columns of each topic, and add its writers to the export states.

    The type of a topic is fixed before rows are written: by its subjects, by what earlier runs have
    found in its records, and by the new ones.
    """
    writers: dict[tuple[str, str], set[Writer]] = defaultdict(set)
    for partition in plan.partitions:
        known = {} if partition.state is None else partition.state.writers
        for part, texts in known.items():
            writers[partition.partition.topic, part].update(map(Writer.of_text, texts))
    works = [] if settings.types else plan.works
    for found in workers.run(
        works,
        partial(_find_writers, settings=settings.read, decode=decode),
        sizes=[work.split.size_bytes for work in works],
        what="find the schemas of {:,} splits of records",
        waves=Waves.KEPT,
    ):
        for place, own in found.items():
            writers[place] |= own
    types = dict(settings.types)
    for topic in sorted({work.split.topic for work in works}):
        types[topic] = typed_columns([topic], writers, decode, settings.needed_columns)
    for partition in plan.partitions:
        if partition.state is not None:
            own_writers = {
                part: sorted(one.text for one in writers[partition.partition.topic, part])
                for part in decode.parts
                if writers[partition.partition.topic, part]
            }
            partition.state = replace(partition.state, writers=own_writers)
    return types


def types_of_logs(
    files: Sequence[PartitionFiles], settings: ExportSettings, decode: DecodeOptions
) -> dict[str, TypedColumns]:
    """Return the typed columns of each topic, by all of its records."""
    read = replace(settings.read, columns=("offset",))
    writers = find_writers(plan_partitions(files, settings=read).splits, read, decode)
    topics = sorted({one.topic for one in files})
    names = settings.needed_columns
    return {topic: typed_columns([topic], writers, decode, names) for topic in topics}


def _find_writers(
    work: SplitWork, _attempt_id: str, *, settings: ReadSettings, decode: DecodeOptions
) -> dict[tuple[str, str], set[Writer]]:
    """Return what the records of a split were written with; damage is reported by the export."""
    try:
        return find_writers([work.split], settings, decode)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return {}
