"""The result of ``schemas``: versions of subjects, and the schemas that topics use."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa
from msgspec.structs import asdict

from kafka_index.core.errors import Faults, first_of, plural
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    MissingOffsets,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
    count_statuses,
)
from kafka_index.core.schema.registry import (
    KeyKind,
    Schema,
    SchemaKey,
    Schemas,
    SubjectSettings,
    Version,
    VersionState,
    strip_context,
)
from kafka_index.core.schema.wire import MAX_KEYS


class UseStatus(StrEnum):
    """Whether the schema that records of a topic refer to was found."""

    FOUND = "found"
    #: No schema has the id or GUID.
    MISSING = "missing"
    #: A reference of the schema is missing or circular, or several schemas have the same ID.
    UNUSABLE = "unusable"
    #: The first bytes look like an ID, but are probably a part of a number or text.
    NO_ID = "no_id"
    #: The bytes have no schema ID.
    UNFRAMED = "unframed"
    NULL = "null"


_BAD_USES = (UseStatus.MISSING, UseStatus.UNUSABLE)


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """Keys or values of a topic that refer to one schema.

    `part` is ``key`` or ``value``. `key` is None for records without an ID, and for IDs that are
    not among the first `MAX_KEYS` and only counted together.
    """

    topic: str
    part: str
    status: UseStatus
    records: int
    key: SchemaKey | None = None
    schema: Schema | None = None
    reason: str | None = None


_REFERENCE = pa.struct([("name", pa.string()), ("subject", pa.string()), ("version", pa.int32())])
_USE = pa.struct([("topic", pa.string()), ("part", pa.string()), ("records", pa.int64())])
#: The columns of `SchemaList`. The name of a subject contains its `topic`.
SCHEMAS_SCHEMA = pa.schema(
    [
        pa.field("subject", pa.string(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("schema_id", pa.int64()),
        pa.field("type", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("compatibility", pa.string()),
        pa.field("mode", pa.string()),
        pa.field("alias", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("context", pa.string(), nullable=False),
        pa.field("guid", pa.string(), nullable=False),
        pa.field("references", pa.list_(_REFERENCE)),
        pa.field("uses", pa.list_(_USE)),
        pa.field("text", pa.string()),
    ]
)
_MEANINGS: Mapping[VersionState, tuple[Severity, str]] = {
    VersionState.LIVE: (GOOD, "the registry serves the version"),
    VersionState.DELETED: (GOOD, "soft-deleted; the registry still serves the schema by id"),
    VersionState.GONE: (NOTABLE, "hard-deleted or replaced; compaction will remove the schema"),
}


class SchemaList(Result):
    """The result of `read_schemas`: a row per version of a subject.

    Parameters
    ----------
    schemas : object
        The schemas.
    uses : tuple of SchemaUse
        The schemas that the keys and values of each topic refer to.
    topics : sequence of str
        The topics of the input, without internal ones.
    records : int or None
        The number of records that were read; None with ``skip_records``.
    log_bytes : int
        The bytes of logs that were read.
    faults : object
        Corrupt ranges that were skipped.
    missing : object
        The missing offsets in the logs that were read.
    subject : str or None
        The only subject that is listed.
    output : str or None
        The folder that the schemas are written to.
    unread : sequence of str
        Entries of the input that were not read, each with the reason.
    skipped : sequence of (str, str)
        Entries of the input that a broker would not load, with the reason.
    """

    command = "schemas"
    status_header = ("state", "versions")

    def __init__(
        self,
        schemas: Schemas,
        uses: tuple[SchemaUse, ...],
        *,
        topics: Sequence[str],
        records: int | None,
        log_bytes: int,
        faults: Faults,
        missing: MissingOffsets,
        subject: str | None,
        output: str | None,
        unread: Sequence[str],
        skipped: Sequence[tuple[str, str]],
    ) -> None:
        self.uses, self.records = uses, records
        self._schemas, self._subject, self._output = schemas, subject, output
        self._topics, self._log_bytes = topics, log_bytes
        self._faults, self._missing = faults, missing
        self._unread, self._skipped = unread, skipped

    @cached_property
    def _versions(self) -> list[Version]:
        """The requested versions, sorted by subject and number."""
        subjects = self._schemas.subjects() if self._subject is None else [self._subject]
        return [version for subject in subjects for version in self._schemas.list_versions(subject)]

    @property
    def chosen(self) -> list[Schema]:
        """The schemas of the requested versions, and the schemas that they refer to."""
        if self._subject is None:
            return list(self._schemas)
        schemas = {version.schema for version in self._versions}
        for schema in tuple(schemas):
            if self._schemas.unusable_reason(schema) is None:
                schemas.update(self._schemas.find_references(schema).values())
        return [schema for schema in self._schemas if schema in schemas]

    @cached_property
    def _requested_uses(self) -> list[SchemaUse]:
        """The uses of the requested subject's schemas; all uses if no subject is requested."""
        if self._subject is None:
            return list(self.uses)
        subject_schemas = {version.schema for version in self._versions}
        return [
            use
            for use in self.uses
            if use.schema in subject_schemas
            or (use.status in _BAD_USES and f"{use.topic}-{use.part}" == self._subject)
        ]

    @property
    def _bad_uses(self) -> list[SchemaUse]:
        return [use for use in self._requested_uses if use.status in _BAD_USES]

    @property
    def headline(self) -> str:
        """The number of versions, and whether schemas are missing."""
        subjects = len({version.subject for version in self._versions})
        headline = f"{plural(len(self._versions), 'version')} of {plural(subjects, 'subject')}"
        bad_uses, resolved_ids = self._bad_uses, self._resolved_ids
        if self.records is None:
            headline += "; records were not read"
        elif bad_uses:
            verb = "is" if len(bad_uses) == 1 else "are"
            headline += f"; {plural(len(bad_uses), 'schema')} {verb} missing or unusable, "
            headline += f"such as {_format_use(bad_uses[0])}"
        elif self._subject is not None:
            headline += f"; used by {plural(resolved_ids, 'key or value', 'keys and values')}"
        elif resolved_ids:
            values = plural(resolved_ids, "key or value", "keys and values")
            headline += f"; every schema of {values} was found"
        else:
            headline += f"; {plural(self.records, 'record')} without schema IDs"
        skipped = self._faults.total
        headline += f"; {plural(skipped, 'corrupt or unreadable range')} skipped" if skipped else ""
        malformed = len(self._schemas.unreadable)
        headline += f"; {plural(malformed, 'malformed schema record')}" if malformed else ""
        return headline if self._output is None else f"{headline}; written to {self._output}"

    @property
    def _resolved_ids(self) -> int:
        return sum(use.records for use in self._requested_uses if use.status is UseStatus.FOUND)

    @property
    def statuses(self) -> list[Status]:
        """The number of versions by state."""
        return count_statuses((version.state for version in self._versions), _MEANINGS)

    @property
    def facts(self) -> list[str]:
        """The settings of the registry, and the records that are not schemas."""
        facts = []
        settings = _format_settings(self._schemas.settings.get("", SubjectSettings()))
        facts += [f"registry: {settings}"] if settings else []
        if self._schemas.skipped:
            skipped_counts = ", ".join(
                f"{count} {name}" for name, count in sorted(self._schemas.skipped.items())
            )
            facts.append(f"records that are not schemas: {skipped_counts}")
        return facts

    @property
    def sections(self) -> list[Section]:
        """Subjects, topics and problems."""
        subjects = [
            _format_subject(subject, list(versions), self._schemas.settings.get(subject))
            for subject, versions in groupby(self._versions, lambda version: version.subject)
        ]
        topics = [
            _format_topic(topic, uses)
            for topic, uses in groupby(self._requested_uses, lambda use: use.topic)
        ]
        unreadable, conflicts = self._schemas.unreadable, self._schemas.conflicts
        faults = [fault for fault in self._unusable_reasons.values() if fault is not None]
        damage = plural(self._faults.total, "corrupt or unreadable range")
        return [
            Section("subjects:", subjects, GOOD, noun="subject", shows_all=True),
            Section("topics:", topics, GOOD, noun="topic", shows_all=True),
            Section("ids with several schemas:", list(map(str, conflicts)), noun="record"),
            Section("unusable schemas:", faults, noun="schema"),
            Section(
                "missing or unusable schemas:",
                list(map(_format_use, self._bad_uses)),
                BAD,
                noun="use",
            ),
            Section(
                "malformed schema records:",
                list(map(str, unreadable)),
                BAD,
                noun="record",
            ),
            Section(
                f"{damage} skipped:", list(map(str, self._faults.first)), BAD, self._faults.total
            ),
        ]

    @cached_property
    def _unusable_reasons(self) -> dict[Schema, str | None]:
        return {
            schema: self._schemas.unusable_reason(schema)
            for schema in dict.fromkeys(version.schema for version in self._versions)
        }

    @property
    def outcome(self) -> RunOutcome:
        """Damage if schemas are missing, records are unreadable, or offsets are lost."""
        failures = (*self.unread, *self._missing.lost, *self._bad_uses, *self._schemas.unreadable)
        return RunOutcome.of_faults(self._faults.retriable).with_damage(failures)

    @property
    def counts(self) -> Mapping[str, int]:
        """Subjects, versions and schemas, records that were read, and missing schemas."""
        by_status: Counter[UseStatus] = Counter()
        for use in self._requested_uses:
            by_status[use.status] += use.records
        return {
            "subjects": len({version.subject for version in self._versions}),
            "versions": len(self._versions),
            "schemas": len(self._unusable_reasons),
            "records": self.records or 0,
            **{f"{name.value}_uses": by_status[name] for name in UseStatus},
            "unreadable": len(self._schemas.unreadable),
            "conflicts": len(self._schemas.conflicts),
            "damage": self._faults.total,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of logs that were read."""
        return {"logs": self._log_bytes}

    @property
    def work_bytes(self) -> int:
        """The bytes of logs that were read."""
        return self._log_bytes

    @property
    def unread(self) -> Sequence[str]:
        """Entries of the input that were not read, each with the reason."""
        return self._unread

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """Entries of the input that a broker would not load, each with the reason."""
        return self._skipped

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets in the logs that were read."""
        return self._missing

    def to_arrow(self) -> pa.Table:
        """Return a row per version of a subject."""
        return pa.Table.from_pylist(list(map(self._report_row, self._versions)), SCHEMAS_SCHEMA)

    def _report_row(self, version: Version) -> dict[str, Any]:
        schema = version.schema
        settings = self._schemas.settings.get(version.subject, SubjectSettings())
        return {
            "subject": version.subject,
            "version": version.version,
            "schema_id": schema.schema_id,
            "guid": schema.guid,
            "type": schema.type.value,
            "state": version.state.value,
            "context": schema.context,
            "references": list(map(asdict, schema.references)),
            **asdict(settings),
            "topic": self._find_topic(version.subject),
            "uses": self._uses_by_schema.get(schema, []),
            "reason": self._unusable_reasons[schema],
            "text": schema.text,
        }

    def _find_topic(self, subject: str) -> str | None:
        """Return the longest topic of the input with which the name of a subject begins."""
        topics = [topic for topic in self._topics if strip_context(subject).startswith(f"{topic}-")]
        return max(topics, key=len, default=None)

    @cached_property
    def _uses_by_schema(self) -> dict[Schema, list[dict[str, Any]]]:
        uses: dict[Schema, list[dict[str, Any]]] = defaultdict(list)
        for use in self.uses:
            if use.schema is not None:
                uses[use.schema].append(
                    {"topic": use.topic, "part": use.part, "records": use.records}
                )
        return uses

    def as_object(self) -> dict[str, object]:
        """Return the summary, the rows, the uses by topic, and problems."""
        return {
            **self.summary,
            "settings": {
                subject: asdict(settings)
                for subject, settings in sorted(self._schemas.settings.items())
            },
            "versions": self.to_arrow().to_pylist(),
            "topics": [
                {
                    "topic": use.topic,
                    "part": use.part,
                    "status": use.status.value,
                    "records": use.records,
                    "key_kind": None if use.key is None else use.key.kind.value,
                    "key": None if use.key is None else use.key.value,
                    "schema_id": None if use.schema is None else use.schema.schema_id,
                    "guid": None if use.schema is None else use.schema.guid,
                    "reason": use.reason,
                }
                for use in self._requested_uses
            ],
            "unreadable": list(map(str, self._schemas.unreadable)),
            "conflicts": list(map(str, self._schemas.conflicts)),
        }

    def _preview_rows(self) -> pa.Table:
        """Return the rows without schema texts, references and uses."""
        return self.to_arrow().drop_columns(["text", "references", "uses"])


def _format_settings(settings: SubjectSettings) -> str:
    labelled_values = (
        ("compatibility", settings.compatibility),
        ("mode", settings.mode),
        ("alias of", settings.alias),
    )
    return ", ".join(f"{name} {value}" for name, value in labelled_values if value is not None)


def _format_subject(
    subject: str, versions: Sequence[Version], settings: SubjectSettings | None
) -> str:
    """Return a subject with its versions, such as ``1 (id 7), 2 (id 8, deleted)``."""
    types = sorted({version.schema.type.value for version in versions})
    numbers = ", ".join(map(_format_version, versions))
    subject_text = f"{subject}: {' or '.join(types)}, version {numbers}"
    settings_text = "" if settings is None else _format_settings(settings)
    return f"{subject_text}; {settings_text}" if settings_text else subject_text


def _format_version(version: Version) -> str:
    schema = version.schema
    details = [] if schema.schema_id is None else [f"id {schema.schema_id}"]
    details += [version.state.value] if version.state is not VersionState.LIVE else []
    if schema.references:
        names = [reference.name for reference in schema.references]
        details.append(f"refers to {first_of(names, 3)}")
    return f"{version.version} ({', '.join(details)})" if details else str(version.version)


_LABELS = {
    UseStatus.UNFRAMED: "without a schema",
    UseStatus.NULL: "null",
    UseStatus.NO_ID: "with bytes that are not a known schema ID",
}


def _format_topic(topic: str, uses: Iterable[SchemaUse]) -> str:
    """Return the schemas of a topic, such as ``keys id 1 (9); values 9 null``."""
    part_texts = (
        f"{part}s {', '.join(map(_format_count, part_uses))}"
        for part, part_uses in groupby(uses, lambda use: use.part)
    )
    return f"{topic}: {'; '.join(part_texts)}"


def _format_count(use: SchemaUse) -> str:
    if use.status in _LABELS and use.key is None:
        return f"{use.records:,} {_LABELS[use.status]}"
    name = "further IDs" if use.key is None else str(use.key)
    if use.key is not None and use.key.kind is not KeyKind.ID and use.schema is not None:
        name = f"{name} ({use.schema.label})"
    state = "" if use.status is UseStatus.FOUND else f", {use.status.value.replace('_', ' ')}"
    return f"{name} ({use.records:,}{state})"


def _format_use(use: SchemaUse) -> str:
    name = "further IDs" if use.key is None else str(use.key)
    reason = use.reason or f"only the first {MAX_KEYS:,} IDs are looked up"
    return f"{name} in {plural(use.records, use.part)} of {use.topic}: {reason}"
