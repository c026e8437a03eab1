"""Reads the schemas of a registry from its topic ``_schemas`` in a dump.

A registry uses only the last record of each key. However, records of topics may have been written
with deleted or replaced versions of schemas. Such versions are read too, until compaction removes
them from ``_schemas``.

Sources: Confluent's ``KafkaStore``, ``KafkaStoreMessageHandler`` and ``SchemaValue``, Karapace's
``KafkaSchemaReader``.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from msgspec import MsgspecError, Struct

from kafka_index.core.cluster.metadata.decoding import LogRecord, TopicLog
from kafka_index.core.errors import KafkaIndexError, raise_retriable
from kafka_index.core.format.state_files import MALFORMED, decoder_of
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.schema.registry import (
    Schema,
    SchemaId,
    SchemaProblem,
    SchemaReference,
    Schemas,
    SchemaType,
    SubjectSettings,
    SubjectVersion,
    VersionNumber,
    VersionState,
    compute_guid,
    list_rules,
    parse_context,
)

#: The default topic of a registry (``kafkastore.topic``).
SCHEMAS_TOPIC = "_schemas"
_GUID_BYTES = 16


class _Key(Struct):
    keytype: str
    subject: str | None = None
    version: VersionNumber | None = None


class SchemaRecord(Struct, rename="camel"):
    """The value of a ``SCHEMA`` record, which has the same members as the REST API's responses."""

    id: SchemaId
    schema: str
    subject: str | None = None
    version: VersionNumber | None = None
    schema_type: str | None = None
    references: list[SchemaReference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    md5: str | None = None
    guid: str | None = None
    deleted: bool | None = None


class _Config(Struct, rename="camel"):
    compatibility_level: str | None = None
    alias: str | None = None


class _Mode(Struct):
    mode: str | None = None


class _Delete(Struct):
    version: VersionNumber
    subject: str | None = None


# The value types by key type. Records with another key type are skipped and counted.
_VALUES: Mapping[str, type[Struct]] = {
    "SCHEMA": SchemaRecord,
    "CONFIG": _Config,
    "MODE": _Mode,
    "DELETE_SUBJECT": _Delete,
}


def _parse_schema(record: SchemaRecord, context: str) -> Schema:
    references = tuple(record.references or ())
    rule_types = {str(rule.get("type")) for rule in list_rules(record.rule_set or {})}
    try:
        # In Confluent's records, an Avro schema has no schema type.
        schema_type = SchemaType(record.schema_type or SchemaType.AVRO)
    except ValueError:
        raise ValueError(f"unknown schema type {record.schema_type!r}") from None
    return Schema(
        record.id,
        record.guid or _parse_guid(record, references),
        schema_type,
        record.schema,
        references,
        context=context,
        rule_types=tuple(sorted(rule_types)),
    )


def _parse_guid(record: SchemaRecord, references: Sequence[SchemaReference]) -> str:
    """Return the GUID: the MD5 that newer registries store, or else the computed MD5."""
    try:
        md5 = base64.b64decode(record.md5 or "", validate=True)
    except (binascii.Error, ValueError):
        md5 = b""
    if len(md5) == _GUID_BYTES:
        return str(uuid.UUID(bytes=md5))
    try:
        return compute_guid(record.schema, references, record.metadata, record.rule_set)
    except (AttributeError, TypeError):
        # Confluent's registry would not compute a GUID, because metadata or rules are malformed.
        return compute_guid(record.schema, references)


#: The identity of a schema in a registry: context, ID and GUID.
_SchemaName = tuple[str, int, str]


@dataclass(slots=True)
class _Version:
    """A version of a subject: its current schema (None if hard-deleted), and all its schemas."""

    schema: _SchemaName | None = None
    is_deleted: bool = False
    all: set[_SchemaName] = field(default_factory=set)

    def state_of(self, schema: _SchemaName) -> VersionState:
        if schema != self.schema:
            return VersionState.GONE
        return VersionState.DELETED if self.is_deleted else VersionState.LIVE


class _Record(NamedTuple):
    """A valid record of ``_schemas``. `value` is a `Schema`, another type of `_VALUES`, or None."""

    offset: int
    path: str
    key: _Key
    value: Any
    is_deleted: bool = False


class SchemasTopic:
    """Collects the records of ``_schemas`` in any order, and replays them by offset."""

    def __init__(self) -> None:
        self._records: list[_Record] = []
        #: One object for equal schemas, which occur in several versions and replicas.
        self._distinct: dict[Schema, Schema] = {}
        self.skipped: Counter[str] = Counter()
        self.unreadable: list[SchemaProblem] = []

    def add(self, record: LogRecord, path: str = "") -> None:
        """Add a record. An invalid record is added to the list of problems."""
        if record.is_control:
            return
        try:
            key = decoder_of(_Key).decode(record.key or b"")
            value_type = _VALUES.get(key.keytype)
            if value_type is None:
                self.skipped[key.keytype] += 1
                return
            # Karapace writes an empty value, instead of null, to delete a version.
            value: Any = decoder_of(value_type).decode(record.value) if record.value else None
            if value_type is SchemaRecord:
                self.add_version(key.subject, key.version, value, record.offset, path)
            else:
                self._records.append(_Record(record.offset, path, key, value))
        except (*MALFORMED, ValueError) as error:
            self.unreadable.append(SchemaProblem(record.offset, _error_reason(error), path))

    def add_version(
        self,
        subject: str | None,
        version: int | None,
        value: SchemaRecord | None,
        offset: int,
        path: str = "",
    ) -> None:
        """Add the schema of a version, or the hard delete of the version if `value` is None.

        Raises `ValueError` for a version without a number, and for an unknown type of schema.
        """
        if subject is None or version is None:
            raise ValueError("the key of the schema record has no subject or version")
        schema, is_deleted = None, False
        if value is not None:
            schema, is_deleted = _parse_schema(value, parse_context(subject)), bool(value.deleted)
            schema = self._distinct.setdefault(schema, schema)
        key = _Key("SCHEMA", subject, version)
        self._records.append(_Record(offset, path, key, schema, is_deleted))

    def schemas(self, origin: str, *, has_foreign_ids: bool = False) -> Schemas:
        """Return all schemas that were ever written, with their versions."""
        replay = _Replay()
        for record in sorted(self._records, key=lambda record: record.offset):
            replay.apply(record)
        return Schemas(
            replay.schemas(),
            origin=origin,
            unreadable=self.unreadable,
            conflicts=replay.conflicts,
            settings=replay.settings(),
            has_foreign_ids=has_foreign_ids,
            skipped=self.skipped,
        )


class _Replay:
    """The state of a registry after replaying records in offset order."""

    def __init__(self) -> None:
        # The schemas, sorted by the offset of each schema's last record.
        self._schemas: dict[_SchemaName, Schema] = {}
        self._by_id: dict[tuple[str, int], tuple[int, Schema]] = {}
        self._versions: dict[str, dict[int, _Version]] = defaultdict(lambda: defaultdict(_Version))
        self._configs: dict[str, _Config | None] = {}
        self._modes: dict[str, _Mode | None] = {}
        self.conflicts: list[SchemaProblem] = []

    def apply(self, record: _Record) -> None:
        subject, value = record.key.subject or "", record.value
        match record.key.keytype:
            case "SCHEMA":
                self._write(record, self._versions[subject][record.key.version or 0])
            case "DELETE_SUBJECT" if value is not None:
                for number, version in self._versions[subject].items():
                    version.is_deleted |= number <= value.version
            case "CONFIG":
                self._configs[subject] = value
            case "MODE":
                self._modes[subject] = value

    def _write(self, record: _Record, version: _Version) -> None:
        schema: Schema | None = record.value
        version.schema, version.is_deleted = None, record.is_deleted
        if schema is None or schema.schema_id is None:
            return
        version.schema = name = (schema.context, schema.schema_id, schema.guid)
        version.all.add(name)
        self._schemas.pop(name, None)
        self._schemas[name] = schema
        offset, id_schema = self._by_id.get(name[:2], (0, schema))
        if (id_schema.type, id_schema.text, id_schema.references) != (
            schema.type,
            schema.text,
            schema.references,
        ):
            reason = f"id {schema.schema_id} has a different schema at offset {offset}"
            self.conflicts.append(SchemaProblem(record.offset, reason, record.path))
        self._by_id[name[:2]] = record.offset, schema

    def schemas(self) -> Iterator[Schema]:
        subjects: dict[_SchemaName, list[SubjectVersion]] = defaultdict(list)
        for subject, versions in self._versions.items():
            for number, version in versions.items():
                for name in version.all:
                    subject_version = SubjectVersion(subject, number, version.state_of(name))
                    subjects[name].append(subject_version)
        for name, schema in self._schemas.items():
            yield replace(schema, subjects=tuple(sorted(subjects[name])))

    def settings(self) -> dict[str, SubjectSettings]:
        settings = {}
        for subject in {*self._configs, *self._modes}:
            config, mode = self._configs.get(subject), self._modes.get(subject)
            if config is not None or mode is not None:
                config, mode = config or _Config(), mode or _Mode()
                settings[subject] = SubjectSettings(
                    config.compatibility_level, mode.mode, config.alias
                )
        return settings


def _error_reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the JSON of the record is nested too deeply"
    # Invalid UTF-8 is a ValueError too.
    is_malformed = isinstance(error, MsgspecError | UnicodeError)
    return f"the record is not a schema record: {error}" if is_malformed else str(error)


def read_dump_schemas(
    paths: Sequence[str], budget: DecompressionBudget, topic: str = SCHEMAS_TOPIC
) -> Schemas:
    """Read the schemas from the topic of a registry in a dump.

    Raises `InputError` if the topic is not in the input or a path cannot be read.
    """
    segments = list_dump(paths, topics=re.compile(re.escape(topic))).segments
    schemas_topic = SchemasTopic()
    for directory, group in groupby(segments, key=lambda segment: segment.partition_directory):
        log = TopicLog(list(group), budget, reads_past_corruption=True)
        for record in log.records():
            schemas_topic.add(record, directory)
        raise_retriable(log.faults)
        schemas_topic.unreadable += map(_to_problem, log.faults)
    return schemas_topic.schemas(topic)


def _to_problem(fault: KafkaIndexError) -> SchemaProblem:
    reason = f"{fault.described}; {fault.hint}" if fault.hint else fault.described
    return SchemaProblem(None, reason, fault.path or "", fault.position_bytes)
