"""The schemas of a registry from its own topic, ``_schemas``, inside a dump.

The last record of a key counts for the registry. For data all records count, also those of versions
that were deleted or replaced: their schemas are read as long as the log has them. Sources:
Confluent's ``KafkaStore``, ``KafkaStoreMessageHandler`` and ``SchemaValue``, Karapace's
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
from typing import Any

from msgspec import MsgspecError, Struct

from kafka_index.core.cluster.metadata.decoding import LogRecord, TopicLog
from kafka_index.core.errors import KafkaIndexError, raise_retriable
from kafka_index.core.format.state_files import MALFORMED, decoder_of
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.schema.registry import (
    Schema,
    SchemaProblem,
    SchemaReference,
    Schemas,
    SchemaType,
    SubjectSettings,
    SubjectVersion,
    VersionState,
    context_of,
    guid_of,
    rules_of,
)

#: The topic of a registry, unless it was configured otherwise (``kafkastore.topic``).
SCHEMAS_TOPIC = "_schemas"
_GUID_BYTES = 16


class _Key(Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None


class _Reference(Struct):
    name: str
    subject: str
    version: int


class SchemaRecord(Struct, rename="camel"):
    """The value of a ``SCHEMA`` record; a REST API answers with the same members."""

    id: int
    schema: str
    subject: str | None = None
    version: int | None = None
    schema_type: str | None = None
    references: list[_Reference] | None = None
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
    version: int
    subject: str | None = None


# Records of other key types say nothing of schemas: they are passed over, and counted.
_VALUES: Mapping[str, type[Struct]] = {
    "SCHEMA": SchemaRecord,
    "CONFIG": _Config,
    "MODE": _Mode,
    "DELETE_SUBJECT": _Delete,
}


def schema_of(record: SchemaRecord, context: str) -> Schema:
    """Return the schema of a record of the topic, or of a REST API, without subjects.

    Raises `ValueError` for a type of schema that is not known.
    """
    references = tuple(
        SchemaReference(one.name, one.subject, one.version) for one in record.references or ()
    )
    rule_types = {str(rule.get("type")) for rule in rules_of(record.rule_set or {})}
    return Schema(
        record.id,
        record.guid or _guid(record, references),
        _type_of(record.schema_type),
        record.schema,
        references,
        context=context,
        rule_types=tuple(sorted(rule_types)),
    )


def _type_of(name: str | None) -> SchemaType:
    try:
        # Confluent leaves out the type of Avro.
        return SchemaType(name or SchemaType.AVRO)
    except ValueError:
        raise ValueError(f"unknown type of schema {name!r}") from None


def _guid(record: SchemaRecord, references: Sequence[SchemaReference]) -> str:
    """Return the GUID: the MD5 that newer registries store, or what they would compute."""
    try:
        stored = base64.b64decode(record.md5 or "", validate=True)
    except (binascii.Error, ValueError):
        stored = b""
    if len(stored) == _GUID_BYTES:
        return str(uuid.UUID(bytes=stored))
    try:
        return guid_of(record.schema, references, record.metadata, record.rule_set)
    except (AttributeError, TypeError):
        # Metadata of other types than Confluent's: no registry computes a GUID of it.
        return guid_of(record.schema, references)


#: A schema in its registry: context, id and GUID.
_SchemaName = tuple[str, int, str]


@dataclass(slots=True)
class _Version:
    """What was written of a version: the last record counts, and None is a hard delete."""

    offset: int = -1
    schema: _SchemaName | None = None
    is_deleted: bool = False
    earlier: dict[_SchemaName, None] = field(default_factory=dict)

    def add(self, offset: int, schema: _SchemaName | None, *, is_deleted: bool) -> None:
        if schema is not None:
            self.earlier[schema] = None
        if offset >= self.offset:
            self.offset, self.schema, self.is_deleted = offset, schema, is_deleted

    def states(
        self, deletes: Sequence[tuple[int, int]], number: int
    ) -> Iterator[tuple[_SchemaName, VersionState]]:
        """Yield the schemas of version `number` with their states, after deletes of the subject."""
        for schema in self.earlier:
            if schema != self.schema:
                yield schema, VersionState.GONE
            elif self.is_deleted or any(
                offset > self.offset and number <= last for offset, last in deletes
            ):
                yield schema, VersionState.DELETED
            else:
                yield schema, VersionState.LIVE


class SchemasTopic:
    """Collects the records of ``_schemas``; their offsets decide, not the order of the calls."""

    def __init__(self) -> None:
        self._schemas: dict[_SchemaName, tuple[int, Schema]] = {}
        self._of_id: dict[tuple[str, int], tuple[int, Schema]] = {}
        self._versions: dict[tuple[str, int], _Version] = defaultdict(_Version)
        self._deletes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._settings: dict[tuple[str, str], tuple[int, Any]] = {}
        self.skipped: Counter[str] = Counter()
        self.unreadable: list[SchemaProblem] = []
        self.conflicts: list[SchemaProblem] = []

    def add(self, record: LogRecord, path: str = "") -> None:
        """Apply a record; one that is not understood is noted."""
        if record.is_control:
            return
        try:
            key = decoder_of(_Key).decode(record.key or b"")
            kind = _VALUES.get(key.keytype)
            if kind is None:
                self.skipped[key.keytype] += 1
                return
            # Karapace deletes with a value of 0 bytes.
            value = decoder_of(kind).decode(record.value) if record.value else None
            self._apply(key, value, record.offset, path)
        except (*MALFORMED, ValueError) as error:
            self.unreadable.append(SchemaProblem(record.offset, _reason_of(error), path))

    def _apply(self, key: _Key, value: Any, offset: int, path: str) -> None:
        match key.keytype:
            case "SCHEMA":
                if key.subject is None or key.version is None:
                    raise ValueError("the key of a schema has no subject or version")
                self.write(key.subject, key.version, value, offset, path)
            case "DELETE_SUBJECT":
                if key.subject is not None and value is not None:
                    self._deletes[key.subject].append((offset, value.version))
            case _:
                name = (key.keytype, key.subject or "")
                if offset >= self._settings.get(name, (-1, None))[0]:
                    self._settings[name] = offset, value

    def write(
        self, subject: str, version: int, value: SchemaRecord | None, offset: int, path: str = ""
    ) -> None:
        """Set the schema of a version, or delete it for good.

        Raises `ValueError` for a type of schema that is not known.
        """
        if value is None:
            self._versions[subject, version].add(offset, None, is_deleted=True)
            return
        schema = schema_of(value, context_of(subject))
        name = (schema.context, value.id, schema.guid)
        self._versions[subject, version].add(offset, name, is_deleted=bool(value.deleted))
        known_offset, known = self._of_id.get(name[:2], (offset, schema))
        if (known.type, known.text, known.references) != (
            schema.type,
            schema.text,
            schema.references,
        ):
            reason = f"id {value.id} has another schema than at offset {known_offset}"
            self.conflicts.append(SchemaProblem(offset, reason, path))
        if offset >= known_offset:
            self._of_id[name[:2]] = offset, schema
        if offset >= self._schemas.get(name, (-1, schema))[0]:
            self._schemas[name] = offset, schema

    def schemas(self, origin: str, *, has_foreign_ids: bool = False) -> Schemas:
        """Return all schemas that were ever written, with their versions."""
        found: dict[_SchemaName, list[SubjectVersion]] = defaultdict(list)
        for (subject, number), version in self._versions.items():
            for name, state in version.states(self._deletes.get(subject, ()), number):
                found[name].append(SubjectVersion(subject, number, state))
        # The last schema of an id is the one that counts.
        ordered = sorted(self._schemas.items(), key=lambda item: item[1][0])
        return Schemas(
            (replace(schema, subjects=tuple(sorted(found[name]))) for name, (_, schema) in ordered),
            origin=origin,
            unreadable=self.unreadable,
            conflicts=self.conflicts,
            settings=self._subject_settings(),
            has_foreign_ids=has_foreign_ids,
            skipped=self.skipped,
        )

    def _subject_settings(self) -> dict[str, SubjectSettings]:
        settings: dict[str, SubjectSettings] = {}
        for (keytype, subject), (_, value) in sorted(
            self._settings.items(), key=lambda item: item[0]
        ):
            if value is None:
                continue
            before = settings.get(subject, SubjectSettings())
            settings[subject] = (
                replace(before, mode=value.mode)
                if keytype == "MODE"
                else replace(before, compatibility=value.compatibility_level, alias=value.alias)
            )
        return settings


def _reason_of(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply"
    # Malformed UTF-8 is a ValueError too, of another text.
    is_malformed = isinstance(error, MsgspecError | UnicodeError)
    return f"not a record of a registry: {error}" if is_malformed else str(error)


def schemas_of_dump(
    paths: Sequence[str], budget: DecompressionBudget, topic: str = SCHEMAS_TOPIC
) -> Schemas:
    """Read the schemas from the topic of a registry in a dump.

    All records of its log are read, also those of deleted and replaced versions. Raises
    `InputError` if the topic is not in the input or a path cannot be read.
    """
    segments = list_dump(paths, topics=re.compile(re.escape(topic))).segments
    found = SchemasTopic()
    for directory, group in groupby(segments, key=lambda segment: segment.partition_directory):
        log = TopicLog(list(group), budget, reads_on=True)
        for record in log.records():
            found.add(record, directory)
        raise_retriable(log.faults)
        found.unreadable += map(_problem_of, log.faults)
    return found.schemas(topic)


def _problem_of(fault: KafkaIndexError) -> SchemaProblem:
    reason = f"{fault.described}; {fault.hint}" if fault.hint else fault.described
    return SchemaProblem(None, reason, fault.path or "", fault.position_bytes)
