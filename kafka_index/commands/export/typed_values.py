"""The types of decoded keys and values, determined from the schemas and records of an export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from kafka_index.commands.export.export_state import ExportState, export_state
from kafka_index.commands.export.partition_export import SplitTask
from kafka_index.commands.export.plan import ExportPlan
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.job.engine import JobSizes, Workers
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES
from kafka_index.core.query.records import plan_partitions
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.query.typed_records import (
    PartCounts,
    TopicCounts,
    check_mapping,
    find_writers,
    typed_columns,
)
from kafka_index.core.schema.decode import ColumnForm, DecodeOptions, TypedColumns, Writer

_FORM_TEXTS = {
    ColumnForm.BYTES: "bytes, because no schema was found",
    ColumnForm.ONE_TYPE: "values of one type",
    ColumnForm.TYPES: "a struct with a member for each type of records",
}


def find_types(
    workers: Workers, plan: ExportPlan, settings: ExportSettings, decode: DecodeOptions
) -> dict[str, TypedColumns]:
    """Return the typed columns of each topic, and add their writer schemas to the export states.

    The type of a topic is determined before rows are written, by its subjects, by the writer
    schemas that earlier runs have found in its records, and by the new records. Raises `InputError`
    if columns have another form than in earlier runs.
    """
    counts_by_topic: TopicCounts = defaultdict(PartCounts)
    for partition in plan.partitions:
        writers = {} if partition.state is None else partition.state.writers
        for part, writer_texts in writers.items():
            part_counts = counts_by_topic[partition.partition.topic, part]
            part_counts.earlier_writers.update(map(Writer.parse, writer_texts))
    tasks = [] if settings.types else plan.tasks
    for split_counts in workers.run(
        tasks,
        partial(_find_writers, settings=settings.read, decode=decode),
        sizes=[task.split.size_bytes for task in tasks],
        description="find the schemas of {:,} splits of records",
        jobs=JobSizes.EQUAL,
    ):
        for topic_part, counts in split_counts.items():
            counts_by_topic[topic_part].add(counts)
    types = dict(settings.types)
    for topic in sorted({task.split.topic for task in tasks}):
        types[topic] = _topic_columns(topic, counts_by_topic, decode, settings)
    check_mapping(decode, types)
    states = {
        partition.partition: partition.state
        for partition in plan.partitions
        if partition.state is not None
    }
    _check_forms(states, types)
    for partition in plan.partitions:
        topic = partition.partition.topic
        if partition.state is not None and topic in types:
            partition.state = replace(
                partition.state,
                writers={
                    part: sorted(writer.text for writer in counts_by_topic[topic, part].all_writers)
                    for part in decode.parts
                    if counts_by_topic[topic, part].all_writers
                },
                forms={part: form.value for part, form in types[topic].forms.items()},
            )
    return types


def types_of_logs(
    files: Sequence[PartitionFiles],
    settings: ExportSettings,
    decode: DecodeOptions,
    threads: int | None,
) -> dict[str, TypedColumns]:
    """Return the typed columns of each topic, based on all of its records.

    Raises `InputError` if columns have another form than in earlier runs.
    """
    read = replace(settings.read, columns=("offset",))
    plan = plan_partitions(files, settings=read, max_split_bytes=SEARCHED_SPLIT_BYTES)
    counts_by_topic = find_writers(plan.splits, read, decode, threads=threads)
    topics = sorted({partition.topic for partition in files})
    types = {topic: _topic_columns(topic, counts_by_topic, decode, settings) for topic in topics}
    check_mapping(decode, types)
    partitions = [TopicPartition(partition.topic, partition.partition) for partition in files]
    states = {
        partition: state
        for partition in partitions
        if (state := export_state(settings.folder_of(partition)).read()) is not None
    }
    _check_forms(states, types)
    return types


def _check_forms(
    states: Mapping[TopicPartition, ExportState], types: Mapping[str, TypedColumns]
) -> None:
    """Raise `InputError` if keys or values have another `ColumnForm` than in earlier data files."""
    for partition, state in states.items():
        columns = types.get(partition.topic)
        if columns is None or state.next_offset == state.first_offset:
            continue
        for part, form in columns.forms.items():
            earlier_form = ColumnForm(state.forms.get(part, form))
            if earlier_form is not form:
                raise InputError(
                    f"the {part}s of topic {partition.topic} do not decode to the same form of "
                    "column as in earlier runs",
                    expected=_FORM_TEXTS[earlier_form],
                    found=_FORM_TEXTS[form],
                    hint="give the --schemas of the earlier runs, or another --output",
                )


def _topic_columns(
    topic: str,
    counts_by_topic: TopicCounts,
    decode: DecodeOptions,
    settings: ExportSettings,
) -> TypedColumns:
    # A merge compares the bytes of keys: keys of two schemas may decode to equal values.
    names, keeps_raw = settings.needed_columns, settings.is_latest
    return typed_columns([topic], counts_by_topic, decode, names, keeps_raw=keeps_raw)


def _find_writers(
    task: SplitTask, _attempt_id: str, *, settings: ReadSettings, decode: DecodeOptions
) -> TopicCounts:
    """Return the writer schemas of the records of a split; damage is ignored."""
    try:
        return find_writers([task.split], settings, decode)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return {}
