"""Counts the schemas that records refer to, split by split, and looks them up."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from kafka_index.commands.schemas.request import SchemasRequest
from kafka_index.commands.schemas.result import SchemaList, SchemaUse, UseStatus
from kafka_index.core.errors import (
    CorruptLogError,
    Faults,
    InputError,
    KafkaIndexError,
    UnknownSchemaError,
    first_of,
    without_frames,
)
from kafka_index.core.format.names import INTERNAL_TOPICS
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import real_path
from kafka_index.core.fs.uris import refuse_remote
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import MissingOffsets, ReportSink
from kafka_index.core.log.missing_offsets import SeenLog
from kafka_index.core.output.output import SUCCESS, Output
from kafka_index.core.query.choices import OnDamage
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES
from kafka_index.core.query.missing_records import MissingInRead
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import list_partitions, plan_partitions
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.schema.folder import write_folder, written_names
from kafka_index.core.schema.registry import Schema, SchemaKey, Schemas
from kafka_index.core.schema.schemas_topic import SCHEMAS_TOPIC
from kafka_index.core.schema.sources import open_schemas
from kafka_index.core.schema.wire import Framing, KeyCounts, frames_of

_MAX_ERRORS = 20
_PARTS = ("key", "value")


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """The counts of a split, by part; picklable."""

    topic: str
    parts: tuple[KeyCounts, KeyCounts]
    records: int
    errors: tuple[KafkaIndexError, ...]
    errors_left_out: int
    seen: tuple[SeenLog, ...]


def count_split(split: RecordSplit, _attempt_id: str, *, settings: ReadSettings) -> SplitCounts:
    """Count the schemas that the records of a split refer to; note and skip corrupt ranges."""
    errors: list[KafkaIndexError] = []
    records = left_out = 0

    def skip(error: CorruptLogError) -> None:
        nonlocal left_out
        if len(errors) < _MAX_ERRORS:
            errors.append(error)
        else:
            left_out += 1

    reader = RecordReader(split, settings, on_left_out=skip)
    parts = KeyCounts(), KeyCounts()
    try:
        for batch in reader:
            records += len(batch)
            for part, counts in zip(_PARTS, parts, strict=True):
                frames = frames_of(
                    batch.column(part), batch.column("headers"), is_key=part == "key"
                )
                counts.add_frames(frames)
    except KafkaIndexError as error:
        errors.append(without_frames(error))
    return SplitCounts(split.topic, parts, records, tuple(errors), left_out, tuple(reader.seen))


def list_schemas(
    request: SchemasRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> SchemaList:
    """List the schemas of a request, and count the records that use them.

    Raises `InputError` if the input has no schemas, or not the requested subject.
    """
    with ExitStack() as stack:
        unread = stack.enter_context(reading_inputs(follow_links=request.follow_links))
        output = _output_of(request)
        if output is not None:
            stack.enter_context(output)
        schemas = open_schemas(
            request.schemas, request.inputs, shared_budget(request.max_decompressed_bytes)
        )
        if request.subject is not None and not schemas.versions_of(request.subject):
            raise InputError(
                f"there is no subject {request.subject!r}",
                expected=first_of(schemas.subjects(), 5),
            )
        listed = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        own = {*INTERNAL_TOPICS, SCHEMAS_TOPIC, schemas.origin}
        files = [one for one in listed.files if one.topic not in own]
        plan = plan_partitions(
            [] if request.skip_records else files,
            settings=ReadSettings(
                columns=("key", "value", "headers", "offset"),
                on_damage=OnDamage.DROP,
                max_decompressed_bytes=request.max_decompressed_bytes,
            ),
            max_split_bytes=SEARCHED_SPLIT_BYTES,
            finder=listed.gap_finder(request.max_decompressed_bytes),
        )
        counts, records, faults, missing = _count(plan, engine, listener or SILENT)
        result = SchemaList(
            schemas,
            tuple(_uses(counts, schemas, request.schema_context)),
            topics=sorted({one.topic for one in files}),
            records=None if request.skip_records else records,
            log_bytes=plan.size_bytes,
            faults=faults,
            missing=missing,
            subject=request.subject,
            output=None if output is None else output.root,
            unread=unread_texts(unread),
            skipped=skipped_texts(listed.skipped),
        )
        if output is not None:
            names = write_folder(schemas, result.chosen, output.make_staging())
            # Another program may have written to the folder since the first check.
            _refuse_others(output.root)
            output.publish_folder(names)
    return result


def _output_of(request: SchemasRequest) -> Output | None:
    if request.output is None:
        return None
    refuse_remote(
        request.output, "schemas are written to a local folder", hint="copy the folder afterwards"
    )
    root = real_path(request.output)
    _refuse_others(root)
    sources = [request.schemas] if os.path.exists(request.schemas) else []
    return Output.for_path(root, request.output, [*request.folders, *sources])


def _refuse_others(root: str) -> None:
    """Raise an error for an output that is not new, empty, or from an earlier run."""
    if not os.path.isdir(root):
        if os.path.exists(root):
            raise InputError("the output is a file", path=root, hint="give a new or empty folder")
        return
    names = set(os.listdir(root))
    others = names - {SUCCESS} - written_names(root) if SUCCESS in names else names
    if others:
        raise InputError(
            "the output has other files",
            path=root,
            found=min(others),
            hint="give a new or an empty folder",
        )


def _count(
    plan: ReadPlan, engine: Engine, listener: Listener
) -> tuple[dict[tuple[str, str], KeyCounts], int, Faults, MissingOffsets]:
    counts: dict[tuple[str, str], KeyCounts] = defaultdict(KeyCounts)
    records, faults = 0, Faults()
    seen = MissingInRead(plan.partitions, plan.finder)
    sizes = [split.size_bytes for split in plan.splits]
    listener.on_plan(len(sizes), sum(sizes), ("split", "splits"))
    if plan.splits:
        with engine.start(
            "schemas",
            after_failure="run again",
            listener=listener,
            tasks=len(sizes),
            inputs=sorted({name for split in plan.splits for name in split.directories}),
        ) as workers:
            for found, size_bytes in zip(
                workers.run(
                    plan.splits,
                    partial(count_split, settings=plan.settings),
                    sizes=sizes,
                    what="read {:,} splits of records",
                    ordered=True,
                ),
                sizes,
                strict=True,
            ):
                for part, own in zip(_PARTS, found.parts, strict=True):
                    counts[found.topic, part].add(own)
                records += found.records
                faults.add(*found.errors)
                faults.add_damage(found.errors_left_out)
                seen.add(found.seen, ())
                listener.on_done(1, size_bytes)
    return counts, records, faults, seen.find()


def _uses(
    counts: Mapping[tuple[str, str], KeyCounts], schemas: Schemas, context: str
) -> Iterator[SchemaUse]:
    """Yield the schemas of the keys and values of each topic, and why a schema is unusable."""
    faults: dict[Schema, str | None] = {}
    for (topic, part), own in sorted(counts.items(), key=lambda item: item[0]):
        found = {key: _find(schemas, key, context) for key in own.keys}
        are_numbers = own.are_numbers(sum(isinstance(one, Schema) for one in found.values()))
        for key, records in sorted(own.keys.items()):
            schema = found[key]
            if isinstance(schema, Schema):
                if schema not in faults:
                    faults[schema] = schemas.fault_of(schema)
                status = UseStatus.FOUND if faults[schema] is None else UseStatus.UNUSABLE
                yield SchemaUse(topic, part, status, records, key, schema, faults[schema])
                continue
            status = UseStatus.MISSING if key.is_plausible else UseStatus.NO_ID
            status = UseStatus.NO_ID if are_numbers else status
            yield SchemaUse(topic, part, status, records, key, reason=schema)
        if own.others:
            status = UseStatus.NO_ID if are_numbers else UseStatus.MISSING
            yield SchemaUse(topic, part, status, own.others)
        for status, forms in _PLAIN.items():
            records = sum(own.framings[form] for form in forms)
            if records:
                yield SchemaUse(topic, part, status, records)


#: The framings of records without an id.
_PLAIN = {
    UseStatus.UNFRAMED: (Framing.NONE, Framing.EMPTY, Framing.TOO_SHORT),
    UseStatus.NULL: (Framing.NULL,),
}


def _find(schemas: Schemas, key: SchemaKey, context: str) -> Schema | str:
    """Return the schema that a record refers to, or why it is missing."""
    try:
        return schemas.find(key, context)
    except UnknownSchemaError:
        others = schemas.contexts_of(key)
        return f"only context {first_of(others, 3)} has it" if others else "no schema has it"
