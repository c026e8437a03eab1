"""Counts the schema IDs of records split by split, and looks up the schemas of the IDs."""

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
from kafka_index.core.log.choices import OnDamage
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.output.output import SUCCESS, Output
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES
from kafka_index.core.query.missing_records import MissingInRead
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import list_partitions, plan_partitions
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.schema.folder import list_written_files, write_folder
from kafka_index.core.schema.registry import Schema, SchemaKey, Schemas
from kafka_index.core.schema.schemas_topic import SCHEMAS_TOPIC
from kafka_index.core.schema.sources import open_schemas
from kafka_index.core.schema.wire import Framing, KeyCounts, find_frames

_MAX_ERRORS = 20
_PARTS = ("key", "value")


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """The schema IDs of a split, counted separately for keys and values; picklable."""

    topic: str
    parts: tuple[KeyCounts, KeyCounts]
    records: int
    errors: tuple[KafkaIndexError, ...]
    further_errors: int
    seen: tuple[ScannedLog, ...]


def count_split(split: RecordSplit, _attempt_id: str, *, settings: ReadSettings) -> SplitCounts:
    """Count the schema IDs in the records of a split; return also errors of skipped ranges."""
    errors: list[KafkaIndexError] = []
    records = further_errors = 0

    def skip(error: CorruptLogError) -> None:
        nonlocal further_errors
        if len(errors) < _MAX_ERRORS:
            errors.append(error)
        else:
            further_errors += 1

    reader = RecordReader(split, settings, on_skipped=skip)
    parts = KeyCounts(), KeyCounts()
    try:
        for batch in reader:
            records += len(batch)
            for part, counts in zip(_PARTS, parts, strict=True):
                frames = find_frames(
                    batch.column(part), batch.column("headers"), is_key=part == "key"
                )
                counts.add_frames(frames)
    except KafkaIndexError as error:
        errors.append(without_frames(error))
    return SplitCounts(
        split.topic, parts, records, tuple(errors), further_errors, tuple(reader.read_logs)
    )


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
        output = _open_output(request)
        if output is not None:
            stack.enter_context(output)
        schemas = open_schemas(
            request.schemas, request.inputs, shared_budget(request.max_decompressed_bytes)
        )
        if request.subject is not None and not schemas.list_versions(request.subject):
            raise InputError(
                f"subject {request.subject!r} does not exist",
                expected=first_of(schemas.subjects(), 5),
            )
        listing = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        skipped_topics = {*INTERNAL_TOPICS, SCHEMAS_TOPIC, schemas.origin}
        partitions = [files for files in listing.files if files.topic not in skipped_topics]
        plan = plan_partitions(
            [] if request.skip_records else partitions,
            settings=ReadSettings(
                columns=("key", "value", "headers", "offset"),
                on_damage=OnDamage.DROP,
                max_decompressed_bytes=request.max_decompressed_bytes,
            ),
            max_split_bytes=SEARCHED_SPLIT_BYTES,
            finder=listing.gap_finder(request.max_decompressed_bytes),
        )
        counts, records, faults, missing = _count_splits(plan, engine, listener or SILENT)
        result = SchemaList(
            schemas,
            tuple(_find_uses(counts, schemas, request.schema_context)),
            topics=sorted({files.topic for files in partitions}),
            records=None if request.skip_records else records,
            log_bytes=plan.size_bytes,
            faults=faults,
            missing=missing,
            subject=request.subject,
            output=None if output is None else output.root,
            unread=unread_texts(unread),
            skipped=skipped_texts(listing.skipped),
        )
        if output is not None:
            names = write_folder(schemas, result.chosen, output.make_staging())
            # Another program may have written to the folder since the first check.
            _refuse_foreign_files(output.root)
            output.publish_folder(names)
    return result


def _open_output(request: SchemasRequest) -> Output | None:
    if request.output is None:
        return None
    refuse_remote(
        request.output,
        "schemas are written to a local folder",
        hint="write to a local folder, and upload the folder afterwards",
    )
    root = real_path(request.output)
    _refuse_foreign_files(root)
    sources = [request.schemas] if os.path.exists(request.schemas) else []
    return Output.for_path(root, request.output, [*request.folders, *sources])


def _refuse_foreign_files(root: str) -> None:
    """Raise an error unless the output folder is new, empty, or from an earlier run."""
    if not os.path.isdir(root):
        if os.path.exists(root):
            raise InputError(
                "the output folder is a file", path=root, hint="give a new or an empty folder"
            )
        return
    names = set(os.listdir(root))
    foreign_names = names - {SUCCESS} - list_written_files(root) if SUCCESS in names else names
    if foreign_names:
        raise InputError(
            "the output folder contains files that an earlier run did not write",
            path=root,
            found=min(foreign_names),
            hint="give a new or an empty folder",
        )


def _count_splits(
    plan: ReadPlan, engine: Engine, listener: Listener
) -> tuple[dict[tuple[str, str], KeyCounts], int, Faults, MissingOffsets]:
    counts: dict[tuple[str, str], KeyCounts] = defaultdict(KeyCounts)
    records, faults = 0, Faults()
    missing = MissingInRead(plan.partitions, plan.finder)
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
            for split_counts, size_bytes in zip(
                workers.run(
                    plan.splits,
                    partial(count_split, settings=plan.settings),
                    sizes=sizes,
                    description="read {:,} splits of records",
                    ordered=True,
                ),
                sizes,
                strict=True,
            ):
                for part, part_counts in zip(_PARTS, split_counts.parts, strict=True):
                    counts[split_counts.topic, part].add(part_counts)
                records += split_counts.records
                faults.add(*split_counts.errors)
                faults.add_damage(split_counts.further_errors)
                missing.add(split_counts.seen, ())
                listener.on_done(1, size_bytes)
    return counts, records, faults, missing.find()


def _find_uses(
    counts: Mapping[tuple[str, str], KeyCounts], schemas: Schemas, context: str
) -> Iterator[SchemaUse]:
    """Yield the uses of schemas by the keys and values of each topic."""
    faults: dict[Schema, str | None] = {}
    for (topic, part), part_counts in sorted(counts.items(), key=lambda item: item[0]):
        schemas_by_key = {key: _find_schema(schemas, key, context) for key in part_counts.keys}
        known_ids = sum(isinstance(schema, Schema) for schema in schemas_by_key.values())
        are_numbers = part_counts.are_numbers(known_ids)
        for key, records in sorted(part_counts.keys.items()):
            schema = schemas_by_key[key]
            if isinstance(schema, Schema):
                if schema not in faults:
                    faults[schema] = schemas.unusable_reason(schema)
                status = UseStatus.FOUND if faults[schema] is None else UseStatus.UNUSABLE
                yield SchemaUse(topic, part, status, records, key, schema, faults[schema])
                continue
            status = UseStatus.MISSING if key.is_plausible else UseStatus.NO_ID
            status = UseStatus.NO_ID if are_numbers else status
            yield SchemaUse(topic, part, status, records, key, reason=schema)
        if part_counts.others:
            status = UseStatus.NO_ID if are_numbers else UseStatus.MISSING
            yield SchemaUse(topic, part, status, part_counts.others)
        for status, framings in _UNFRAMED.items():
            records = sum(part_counts.framings[form] for form in framings)
            if records:
                yield SchemaUse(topic, part, status, records)


#: The framings of records without a schema ID.
_UNFRAMED = {
    UseStatus.UNFRAMED: (Framing.NONE, Framing.EMPTY, Framing.TOO_SHORT),
    UseStatus.NULL: (Framing.NULL,),
}


def _find_schema(schemas: Schemas, key: SchemaKey, context: str) -> Schema | str:
    """Return the schema that a record refers to, or why it is missing."""
    try:
        return schemas.find(key, context)
    except UnknownSchemaError:
        contexts = schemas.find_contexts(key)
        if contexts:
            return f"only context {first_of(contexts, 3)} has a schema with this ID"
        return "no schema has this ID"
