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
from collections.abc import Mapping, Sequence
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
        SchemaType(record.schema_type or SchemaType.AVRO),
        record.schema,
        references,
        context=context,
        rule_types=tuple(sorted(rule_types)),
    )


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


@dataclass(slots=True)
class _Versions:
    """The versions of one subject: the key of the schema of each, and its state."""

    schemas: dict[int, tuple[tuple[str, int, str], VersionState]] = field(default_factory=dict)


class SchemasTopic:
    """Collects the records of ``_schemas``, in the order of their offsets."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[str, int, str], Schema] = {}
        self._text_of_id: dict[tuple[str, int], tuple[str, int]] = {}
        self._versions: dict[str, _Versions] = defaultdict(_Versions)
        self._gone: list[tuple[tuple[str, int, str], SubjectVersion]] = []
        self._settings: dict[str, SubjectSettings] = {}
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
        subject = key.subject or ""
        match key.keytype:
            case "SCHEMA":
                if key.subject is None or key.version is None:
                    raise ValueError("the key of a schema has no subject or version")
                self._set_version(key.subject, key.version, value, offset, path)
            case "CONFIG":
                found = self._settings.get(subject, SubjectSettings())
                level, alias = (value.compatibility_level, value.alias) if value else (None, None)
                self._settings[subject] = replace(found, compatibility=level, alias=alias)
            case "MODE":
                found = self._settings.get(subject, SubjectSettings())
                self._settings[subject] = replace(found, mode=value.mode if value else None)
            case _ if value is not None:
                versions = self._versions[subject].schemas
                for version, (schema, _) in versions.items():
                    if version <= value.version:
                        versions[version] = schema, VersionState.DELETED

    def _set_version(
        self, subject: str, version: int, value: SchemaRecord | None, offset: int, path: str
    ) -> None:
        versions = self._versions[subject].schemas
        before = versions.pop(version, None)
        if value is None:
            if before is not None:
                versions[version] = before[0], VersionState.GONE
            return
        try:
            schema = schema_of(value, context_of(subject))
        except ValueError:
            if before is not None:
                versions[version] = before
            raise ValueError(f"unknown type of schema {value.schema_type!r}") from None
        key = (schema.context, value.id, schema.guid)
        if before is not None and before[0] != key:
            self._gone.append((before[0], SubjectVersion(subject, version, VersionState.GONE)))
        versions[version] = key, VersionState.DELETED if value.deleted else VersionState.LIVE
        known = self._text_of_id.setdefault(key[:2], (schema.guid, offset))
        if known[0] != schema.guid:
            reason = f"id {value.id} has another schema than at offset {known[1]}; the later counts"
            self.conflicts.append(SchemaProblem(offset, reason, path))
            self._text_of_id[key[:2]] = schema.guid, offset
        # The last schema of an id is the one that counts.
        self._schemas.pop(key, None)
        self._schemas[key] = schema

    def schemas(self, origin: str) -> Schemas:
        """Return all schemas that were ever written, with their versions."""
        found: dict[tuple[str, int, str], list[SubjectVersion]] = defaultdict(list)
        for schema, gone in self._gone:
            found[schema].append(gone)
        for subject, versions in self._versions.items():
            for version, (schema, state) in versions.schemas.items():
                found[schema].append(SubjectVersion(subject, version, state))
        return Schemas(
            (
                replace(schema, subjects=tuple(sorted(found[key])))
                for key, schema in self._schemas.items()
            ),
            origin=origin,
            unreadable=self.unreadable,
            conflicts=self.conflicts,
            settings={
                subject: settings
                for subject, settings in self._settings.items()
                if settings != SubjectSettings()
            },
            skipped=self.skipped,
        )


def _reason_of(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply"
    text = str(error)
    return f"not a record of a registry: {text}" if isinstance(error, MsgspecError) else text


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
        log = TopicLog(list(group), budget)
        # Of a broker's log the offsets ascend; of a hostile one the records are put in order.
        records = sorted(log.records(), key=lambda record: record.offset)
        for record in records:
            found.add(record, directory)
        raise_retriable(log.faults)
        found.unreadable += map(_problem_of, log.faults)
    return found.schemas(topic)


def _problem_of(fault: KafkaIndexError) -> SchemaProblem:
    return SchemaProblem(None, fault.described, fault.path or "", fault.position_bytes)
