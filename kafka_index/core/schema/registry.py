"""Finds schemas by ID, by GUID, or by subject and version, and resolves their references.

Source: Confluent's ``InMemoryCache``, ``QualifiedSubject``, ``AbstractSchemaProvider`` and ``MD5``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import astuple

from kafka_index.core.errors import BadSchemaError, UnknownSchemaError
from kafka_index.core.format.integers import INT64_MAX

#: The context of subjects whose names contain no context.
DEFAULT_CONTEXT = "."
#: The version number in a reference to the latest version of a subject.
LATEST_VERSION = -1


class SchemaType(StrEnum):
    """The language of a schema; the values are the registry's names."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"

    @property
    def ending(self) -> str:
        """The ending of the names of schema files in this language."""
        return {"AVRO": ".avsc", "PROTOBUF": ".proto", "JSON": ".json"}[self.value]


class VersionState(StrEnum):
    """The state of a version of a subject. The version's schema can be read in each state."""

    LIVE = "live"
    #: Soft-deleted: the registry hides the version, but still serves its schema by ID.
    DELETED = "deleted"
    #: Hard-deleted or replaced: the log contains the schema until compaction removes its record.
    GONE = "gone"


class KeyKind(StrEnum):
    """The kind of schema ID in a record."""

    #: A Confluent id, of 4 bytes.
    ID = "id"
    GUID = "guid"
    #: An id of 8 bytes, as written by older serializers of Apicurio.
    WIDE_ID = "wide_id"
    #: Apicurio's ids in headers.
    GLOBAL_ID = "global_id"
    CONTENT_ID = "content_id"
    #: The UUID of a schema version of AWS Glue.
    GLUE_UUID = "glue_uuid"


class SchemaKey(NamedTuple):
    """The schema ID in a record: a number, or a UUID as text."""

    kind: KeyKind
    value: int | str

    @property
    def is_plausible(self) -> bool:
        """Whether the number may be an ID: the IDs of registries begin at 1."""
        return not isinstance(self.value, int) or self.value > 0

    def __str__(self) -> str:
        """Return the ID as shown in messages."""
        return f"{self.kind.value.replace('_', ' ')} {self.value}"


#: The number of a version (int32), and the id of a schema, which is an int64 in Apicurio.
VersionNumber: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
SchemaId: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=INT64_MAX)]


class SchemaReference(Struct, frozen=True):
    """A reference to a version of a subject.

    The name is the full name of a type (Avro), an import path (Protobuf), or a ``$ref`` (JSON).
    """

    name: str
    subject: str
    version: VersionNumber


class SubjectVersion(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A version of a subject; in the default context, the subject's name contains no context."""

    subject: str
    version: VersionNumber
    state: VersionState = VersionState.LIVE


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema.

    Attributes
    ----------
    schema_id : int or None
        The schema's id, which is unique within `context`; None for a schema file without an id.
    guid : str
        The UUID that Confluent computes from the text, the references, the metadata and the rules.
    subjects : tuple of SubjectVersion
        The versions of subjects that have or had this schema.
    rule_types : tuple of str
        The types of the rules in the schema's rule set. An ``ENCRYPT`` rule means that some fields
        are ciphertext.
    """

    schema_id: int | None
    guid: str
    type: SchemaType
    text: str
    references: tuple[SchemaReference, ...] = ()
    subjects: tuple[SubjectVersion, ...] = ()
    context: str = DEFAULT_CONTEXT
    rule_types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name of the schema in messages."""
        if self.schema_id is not None:
            context = "" if self.context == DEFAULT_CONTEXT else f" in context {self.context}"
            return f"schema {self.schema_id}{context}"
        return f"schema {self.subjects[0].subject if self.subjects else self.guid}"


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """An invalid schema record or file, or a record that reuses the ID of a different schema.

    `offset` is the offset of the record, None for a file or a corrupt batch.
    """

    offset: int | None
    reason: str
    path: str = ""
    position_bytes: int | None = None

    def __str__(self) -> str:
        """Return the location and the reason."""
        location = [self.path] if self.path else []
        location += [] if self.offset is None else [f"offset {self.offset}"]
        location += [] if self.position_bytes is None else [f"at byte {self.position_bytes}"]
        return ": ".join([*location, self.reason])


class SubjectSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings of a subject in a registry; None for a setting without a value.

    `alias` is another subject, whose schemas the registry serves for this subject.
    """

    compatibility: str | None = None
    mode: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema file of a topic's keys or values; `type_name` selects one of its types."""

    schema: Schema
    type_name: str | None = None


class Version(NamedTuple):
    """A version of a subject with its schema."""

    subject: str
    version: int
    state: VersionState
    schema: Schema


class Schemas:
    """The schemas of a run: small, immutable and picklable.

    Parameters
    ----------
    schemas : iterable of Schema
        The schemas in the order in which they were written. Of two schemas with one id, the later
        applies.
    origin : str
        The source of the schemas, for messages.
    unreadable, conflicts : iterable of SchemaProblem
        Invalid records and files, and records that reuse the ID of another schema.
    settings : mapping of str to SubjectSettings
        Settings, keyed by subject; the key of the registry's own settings is an empty name.
    main : Schema, optional
        The schema of the source, if there is only one apart from the schemas that it refers to.
    topics : mapping of (str, bool) to TopicSchema
        The schemas of topics. The key is the name of the topic, and whether it is a schema of keys.
    has_foreign_ids : bool
        Whether ids of Apicurio and UUIDs of Glue are looked up like Confluent's ids and GUIDs.
    skipped : mapping of str to int
        Numbers of records that are not schemas, keyed by key type.
    """

    def __init__(
        self,
        schemas: Iterable[Schema],
        *,
        origin: str = "",
        unreadable: Iterable[SchemaProblem] = (),
        conflicts: Iterable[SchemaProblem] = (),
        settings: Mapping[str, SubjectSettings] | None = None,
        topics: Mapping[tuple[str, bool], TopicSchema] | None = None,
        has_foreign_ids: bool = False,
        main: Schema | None = None,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        self.all = tuple(schemas)
        self.origin = origin
        self.unreadable = tuple(unreadable)
        self.conflicts = tuple(conflicts)
        self.settings = dict(settings or {})
        self.topics = dict(topics or {})
        self.has_foreign_ids = has_foreign_ids
        self.main = main
        self.skipped = dict(skipped or {})
        self._by_id: dict[tuple[str, int], Schema] = {}
        self._by_guid: dict[str, Schema] = {}
        #: Schemas that share their id with a different schema.
        self.ambiguous: frozenset[Schema] = frozenset()
        versions: dict[str, dict[int, Version]] = defaultdict(dict)
        for schema in self.all:
            if schema.schema_id is not None:
                name = (schema.context, schema.schema_id)
                id_schema = self._by_id.get(name, schema)
                if (id_schema.type, id_schema.text) != (schema.type, schema.text):
                    self.ambiguous |= {id_schema, schema}
                self._by_id[name] = schema
            earlier_schema = self._by_guid.get(schema.guid)
            if earlier_schema is None or earlier_schema.context != DEFAULT_CONTEXT:
                self._by_guid[schema.guid] = schema
            for subject, number, state in map(astuple, schema.subjects):
                earlier = versions[subject].get(number)
                # A version that was replaced has several schemas; the current one takes precedence.
                if earlier is None or earlier.state is VersionState.GONE:
                    versions[subject][number] = Version(subject, number, state, schema)
        self._versions = {
            subject: dict(sorted(subject_versions.items()))
            for subject, subject_versions in sorted(versions.items())
        }

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Schema]:
        return iter(self.all)

    @property
    def is_mapped(self) -> bool:
        """Whether records can be mapped to a schema: by an ID, or by topic (in a folder)."""
        has_ids = any(schema.schema_id is not None for schema in self.all)
        return has_ids or bool(self.topics) or not self.all

    def find(self, key: SchemaKey, context: str = DEFAULT_CONTEXT) -> Schema:
        """Return the schema with the ID in a record; raises `UnknownSchemaError` if it is unknown.

        Without `has_foreign_ids`, ids of Apicurio and Glue are unknown, because they are unrelated
        to the ids in ``_schemas``.
        """
        schema = None
        if key.kind in (KeyKind.ID, KeyKind.GUID) or self.has_foreign_ids:
            if isinstance(key.value, int):
                schema = self._by_id.get((context, key.value))
            else:
                schema = self._by_guid.get(key.value)
        if schema is None:
            suffix = "" if context == DEFAULT_CONTEXT else f" in context {context}"
            raise UnknownSchemaError(f"no schema has {key}{suffix}", path=self.origin or None)
        return schema

    def find_contexts(self, key: SchemaKey) -> list[str]:
        """Return the contexts, sorted, in which a Confluent id has a schema."""
        if key.kind is not KeyKind.ID:
            return []
        return sorted(context for context, schema_id in self._by_id if schema_id == key.value)

    def subjects(self) -> list[str]:
        """Return the sorted names of all subjects, including those with only deleted versions."""
        return list(self._versions)

    def list_versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject in ascending order, including deleted versions."""
        return list(self._versions.get(subject, {}).values())

    def find_references(self, schema: Schema) -> dict[str, Schema]:
        """Return all schemas that a schema refers to, also indirectly, keyed by reference name.

        Each schema follows the schemas that it refers to. If two references have the same name, the
        first applies. Raises `BadSchemaError` for a missing or circular reference.
        """
        references_by_name: dict[str, Schema] = {}
        open_schemas = [schema]
        pending: list[tuple[str, Schema, Iterator[SchemaReference]]] = [
            ("", schema, iter(schema.references))
        ]
        while pending:
            name, current, references = pending[-1]
            reference = next(references, None)
            if reference is None:
                pending.pop()
                open_schemas.pop()
                if pending:
                    references_by_name.setdefault(name, current)
                continue
            referred = self._find_referenced_schema(current, reference)
            if any(referred is open_schema for open_schema in open_schemas):
                raise BadSchemaError(
                    f"{schema.label} refers to itself through reference {reference.name!r} of "
                    f"{current.label}",
                    path=self.origin or None,
                )
            if reference.name not in references_by_name:
                open_schemas.append(referred)
                pending.append((reference.name, referred, iter(referred.references)))
        return references_by_name

    def unusable_reason(self, schema: Schema) -> str | None:
        """Return why a schema is unusable: a bad reference, or a different schema with its ID."""
        try:
            self.find_references(schema)
        except BadSchemaError as error:
            return error.message
        if schema in self.ambiguous:
            return f"{schema.label} has several different definitions"
        return None

    def _find_referenced_schema(self, schema: Schema, reference: SchemaReference) -> Schema:
        subject = qualify(reference.subject, schema.context)
        if reference.version == LATEST_VERSION:
            versions = self.list_versions(subject)
            live = [version for version in versions if version.state is VersionState.LIVE]
            version = next(iter(reversed(live or versions)), None)
        else:
            version = self._versions.get(subject, {}).get(reference.version)
        if version is None:
            raise BadSchemaError(
                f"{schema.label} refers to {reference.name!r}, but version {reference.version} of "
                f"subject {subject} does not exist",
                path=self.origin or None,
            )
        return version.schema


def parse_context(subject: str) -> str:
    """Return the context of a subject such as ``:.staging:orders-value``."""
    if not subject.startswith(":."):
        return DEFAULT_CONTEXT
    return subject[1:].partition(":")[0]


def strip_context(subject: str) -> str:
    """Return a subject without its context."""
    if not subject.startswith(":."):
        return subject
    return subject[1:].partition(":")[2]


def qualify(subject: str, context: str) -> str:
    """Add a context to a subject, unless the subject already has a context.

    Source: ``QualifiedSubject.qualifySubjectWithParent``.
    """
    if parse_context(subject) != DEFAULT_CONTEXT:
        return subject
    plain = strip_context(subject)
    return plain if context == DEFAULT_CONTEXT else f":{context}:{plain}"


def compute_guid(
    text: str,
    references: Sequence[SchemaReference],
    metadata: Mapping[str, Any] | None = None,
    rule_set: Mapping[str, Any] | None = None,
) -> str:
    """Return the GUID of a schema, which Confluent computes but does not store (``MD5.ofSchema``).

    `metadata` and the rule set have the form of a record in ``_schemas``.
    """
    digest = hashlib.md5(text.encode(), usedforsecurity=False)
    for reference in references:
        digest.update(reference.name.encode() + reference.subject.encode())
        digest.update((reference.version & 0xFFFFFFFF).to_bytes(4, "big"))
    if metadata is not None:
        digest.update(b"\1")
        for name in ("tags", "properties"):
            # Confluent stores tags and properties in sorted maps and sets.
            for key, value in sorted((metadata.get(name) or {}).items()):
                digest.update(_encode(key))
                for element in sorted(value) if isinstance(value, list) else [value]:
                    digest.update(_encode(element))
        for name in sorted(metadata.get("sensitive") or ()):
            digest.update(_encode(name))
    if rule_set is not None:
        digest.update(b"\1")
        for rule in list_rules(rule_set):
            _update_with_rule(digest, rule)
    return str(uuid.UUID(bytes=digest.digest()))


def list_rules(rule_set: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rules of a rule set."""
    for name in ("migrationRules", "domainRules", "encodingRules"):
        rules = rule_set.get(name)
        for rule in rules if isinstance(rules, list) else ():
            if isinstance(rule, Mapping):
                yield rule


def _update_with_rule(digest: Any, rule: Mapping[str, Any]) -> None:
    for name in ("name", "kind", "mode", "type", "tags", "params", "expr"):
        value = rule.get(name)
        if isinstance(value, Mapping):
            for key, content in sorted(value.items()):
                digest.update(_encode(key) + _encode(content))
        elif isinstance(value, list):
            for element in sorted(map(str, value)):
                digest.update(_encode(element))
        elif value is not None:
            digest.update(_encode(value))
    for name in ("onSuccess", "onFailure"):
        if rule.get(name) is not None:
            digest.update(_encode(rule[name]))
    if rule.get("disabled"):
        digest.update(b"\1")


def _encode(value: object) -> bytes:
    return str(value).encode()
