"""The types of decoded keys and values, found in the schemas and the records of an export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from kafka_index.commands.export.export_state import ExportState, export_state
from kafka_index.commands.export.partition_export import SplitWork
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

    The type of a topic is fixed before rows are written: by its subjects, by what earlier runs have
    found in its records, and by the new ones. Raises `InputError` if columns have another form than
    in earlier runs.
    """
    found: TopicCounts = defaultdict(PartCounts)
    for partition in plan.partitions:
        known = {} if partition.state is None else partition.state.writers
        for part, texts in known.items():
            own = found[partition.partition.topic, part]
            own.earlier_writers.update(map(Writer.parse, texts))
    works = [] if settings.types else plan.works
    for counts in workers.run(
        works,
        partial(_find_writers, settings=settings.read, decode=decode),
        sizes=[work.split.size_bytes for work in works],
        description="find the schemas of {:,} splits of records",
        jobs=JobSizes.EQUAL,
    ):
        for place, one in counts.items():
            found[place].add(one)
    types = dict(settings.types)
    for topic in sorted({work.split.topic for work in works}):
        types[topic] = _topic_columns(topic, found, decode, settings)
    check_mapping(decode, types)
    states = {one.partition: one.state for one in plan.partitions if one.state is not None}
    _check_forms(states, types)
    for partition in plan.partitions:
        topic = partition.partition.topic
        if partition.state is not None and topic in types:
            partition.state = replace(
                partition.state,
                writers={
                    part: sorted(one.text for one in found[topic, part].all_writers)
                    for part in decode.parts
                    if found[topic, part].all_writers
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
    found = find_writers(plan.splits, read, decode, threads=threads)
    topics = sorted({one.topic for one in files})
    types = {topic: _topic_columns(topic, found, decode, settings) for topic in topics}
    check_mapping(decode, types)
    partitions = [TopicPartition(one.topic, one.partition) for one in files]
    states = {one: export_state(settings.folder_of(one)).read() for one in partitions}
    _check_forms({one: state for one, state in states.items() if state is not None}, types)
    return types


def _check_forms(
    states: Mapping[TopicPartition, ExportState], types: Mapping[str, TypedColumns]
) -> None:
    """Refuse to add rows to columns of another form, which readers could not join."""
    for partition, state in states.items():
        typed = types.get(partition.topic)
        if typed is None or state.next_offset == state.first_offset:
            continue
        for part, form in typed.forms.items():
            before = ColumnForm(state.forms.get(part, form))
            if before is not form:
                raise InputError(
                    f"the {part}s of topic {partition.topic} have another form than in earlier "
                    "runs",
                    expected=_FORM_TEXTS[before],
                    found=_FORM_TEXTS[form],
                    hint="give another --output, or the --schemas of the earlier runs",
                )


def _topic_columns(
    topic: str,
    found: TopicCounts,
    decode: DecodeOptions,
    settings: ExportSettings,
) -> TypedColumns:
    # A merge compares the bytes of keys: two schemas may give the same values.
    names, keeps_raw = settings.needed_columns, settings.is_latest
    return typed_columns([topic], found, decode, names, keeps_raw=keeps_raw)


def _find_writers(
    work: SplitWork, _attempt_id: str, *, settings: ReadSettings, decode: DecodeOptions
) -> TopicCounts:
    """Return the schemas that the records of a split were written with; ignores damage."""
    try:
        return find_writers([work.split], settings, decode)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return {}
