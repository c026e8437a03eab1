"""Schemas as files: a folder of ``.avsc``, ``.proto`` and ``.json``, or one file.

``schemas.json`` in the folder maps topics to files, and contains the ids of the schemas. The
command ``schemas --output`` writes a folder in this format. Users can write one too:

    {"topics": {"orders": {"key": "key.avsc", "value": "shop.proto#shop.Order"}},
     "schemas": [{"file": "order.avsc", "id": 7}]}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec import json as msgspec_json
from msgspec.structs import astuple

from kafka_index.core.errors import InputError
from kafka_index.core.format.state_files import MALFORMED, decoder_of
from kafka_index.core.fs.durable_files import publishing, sync
from kafka_index.core.fs.uris import refuse_remote
from kafka_index.core.schema.registry import (
    DEFAULT_CONTEXT,
    Schema,
    SchemaId,
    SchemaReference,
    Schemas,
    SchemaType,
    SubjectSettings,
    SubjectVersion,
    TopicSchema,
    VersionNumber,
    guid_of,
)

#: The file that lists the schemas of a folder.
MANIFEST = "schemas.json"
_TYPES = {kind.ending: kind for kind in SchemaType}
_MAX_NAME_BYTES = 180
_IMPORT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+)?["']([^"'\n]+)["']\s*;""")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_NAMED = ("record", "error", "enum", "fixed")


class _Reference(Struct, forbid_unknown_fields=True):
    name: str
    subject: str
    version: VersionNumber = 1


class _Entry(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A schema of the folder; only the file is required."""

    file: str
    id: SchemaId | None = None
    type: SchemaType | None = None
    guid: str | None = None
    context: str = DEFAULT_CONTEXT
    subjects: tuple[SubjectVersion, ...] | None = None
    references: tuple[_Reference, ...] | None = None
    rule_types: tuple[str, ...] = ()


class _Topic(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Files of a topic, each optionally followed by ``#`` and the name of a type in it."""

    key: str | None = None
    value: str | None = None


class _Manifest(Struct, omit_defaults=True, forbid_unknown_fields=True):
    topics: dict[str, _Topic] = {}
    schemas: list[_Entry] | None = None
    settings: dict[str, SubjectSettings] = {}


def schemas_of_folder(path: str) -> Schemas:
    """Read the schemas of a local folder, or of one file of a schema.

    If ``schemas.json`` lists no files, all files are read. The path of a file in the folder is its
    subject. Files refer to each other by import paths (Protobuf), full names (Avro) and relative
    paths (JSON). Raises `InputError` for a file that cannot be read, is malformed, or is not in the
    folder.
    """
    refuse_remote(path, "schemas are read from a local folder", hint="copy it first")
    if os.path.isdir(path):
        root = path
    elif os.path.basename(path) == MANIFEST:
        root = os.path.dirname(path) or "."
    else:
        return _schemas_of_file(path)
    folder = _Folder(root)
    manifest = folder.manifest()
    if manifest.schemas is None:
        entries = [_Entry(name) for name in folder.names()]
    else:
        entries = list(manifest.schemas)
        listed = {entry.file for entry in entries}
        mapped = {file for file, _ in _topic_files(manifest)}
        entries += [_Entry(name) for name in sorted(mapped - listed)]
    if not entries:
        raise InputError(
            "the folder has no schema",
            path=path,
            expected=f"{MANIFEST}, or files that end in {', '.join(_TYPES)}",
        )
    schemas = folder.schemas(entries)
    by_file = {entry.file: schema for entry, schema in zip(entries, schemas, strict=True)}
    topics = _topics_by_name(path, by_file)
    for name, topic in manifest.topics.items():
        for text, is_key in ((topic.key, True), (topic.value, False)):
            if text is not None:
                file, type_name = _split(text)
                topics[name, is_key] = TopicSchema(by_file[file], type_name)
    return Schemas(
        schemas,
        origin=path,
        topics=topics,
        settings=manifest.settings,
        has_foreign_ids=True,
        main=schemas[0] if len(schemas) == 1 else None,
    )


def _topics_by_name(
    root: str, schemas: Mapping[str, Schema]
) -> dict[tuple[str, bool], TopicSchema]:
    """Return the schemas of the files that have the name of a topic's subject but no ID.

    These are the subjects of the strategy TopicName: TOPIC-key and TOPIC-value.
    """
    found: dict[tuple[str, bool], TopicSchema] = {}
    files: dict[tuple[str, bool], str] = {}
    for file, schema in schemas.items():
        topic, _, part = os.path.splitext(os.path.basename(file))[0].rpartition("-")
        if schema.schema_id is not None or not topic or part not in ("key", "value"):
            continue
        place = topic, part == "key"
        if place in files:
            raise InputError(
                f"two files have the name of the {part}s of topic {topic}",
                path=root,
                found=f"{files[place]}, {file}",
                hint=f"map the topic in {MANIFEST}, or remove one",
            )
        files[place], found[place] = file, TopicSchema(schema)
    return found


def _schemas_of_file(path: str) -> Schemas:
    """Read a file, and the files in its folder to which it refers."""
    folder = _Folder(os.path.dirname(path) or ".")
    names = [os.path.basename(path)]
    # The list grows by the references of its files.
    for name in names:
        for reference in folder.references(name, names=None):
            if folder.has(reference.subject) and reference.subject not in names:
                names.append(reference.subject)
    schemas = folder.schemas([_Entry(name) for name in names])
    by_name = _topics_by_name(folder.root, {names[0]: schemas[0]})
    return Schemas(schemas, origin=path, topics=by_name, has_foreign_ids=True, main=schemas[0])


def topic_schema_of_file(text: str) -> tuple[Schemas, TopicSchema]:
    """Return the schema that ``FILE#Type`` selects, and the schemas to which it may refer.

    Raises the errors of `schemas_of_folder`.
    """
    path, type_name = _split(text)
    if not os.path.isfile(path) and os.path.isfile(text):
        path, type_name = text, None
    schemas = _schemas_of_file(path)
    return schemas, TopicSchema(schemas.all[0], type_name)


def _split(text: str) -> tuple[str, str | None]:
    file, _, type_name = text.partition("#")
    return file, type_name or None


def _topic_files(manifest: _Manifest) -> Iterator[tuple[str, str | None]]:
    for topic in manifest.topics.values():
        for text in (topic.key, topic.value):
            if text is not None:
                yield _split(text)


@dataclass(slots=True)
class _Folder:
    root: str

    def manifest(self) -> _Manifest:
        path = os.path.join(self.root, MANIFEST)
        if not os.path.isfile(path):
            return _Manifest()
        try:
            return decoder_of(_Manifest).decode(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the schemas: {error.strerror}", path=path) from error
        except MALFORMED as error:
            raise InputError(f"not a list of schemas: {error}", path=path) from error

    def names(self) -> list[str]:
        """Return the files of schemas, keyed by their path in the folder."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            place = os.path.relpath(folder, self.root)
            found += [
                name if place == "." else f"{place}/{name}"
                for name in sorted(files)
                if os.path.splitext(name)[1] in _TYPES and not name.startswith(".")
            ]
        return [name for name in found if name != MANIFEST]

    def has(self, name: str) -> bool:
        return _is_inside(name) and os.path.isfile(os.path.join(self.root, name))

    def text(self, name: str) -> str:
        """Return the exact text of a file, because the GUID depends on it."""
        path = os.path.join(self.root, name)
        if not _is_inside(name):
            raise InputError("the schema file is not in the folder", path=path)
        try:
            return Path(path).read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot read the schema: {error.strerror}", path=path) from error
        except UnicodeDecodeError as error:
            raise InputError(
                "the schema is not UTF-8", path=path, position_bytes=error.start
            ) from error

    def type_of(self, name: str) -> SchemaType:
        ending = os.path.splitext(name)[1]
        if ending not in _TYPES:
            raise InputError(
                "not a file of a schema",
                path=os.path.join(self.root, name),
                expected=f"a name that ends in {', '.join(_TYPES)}",
            )
        return _TYPES[ending]

    def references(
        self, name: str, names: Mapping[str, str] | None, kind: SchemaType | None = None
    ) -> list[SchemaReference]:
        """Return the references of a file to other files.

        `names` maps full names of Avro to files; by default the file ``NAME.avsc`` defines NAME.
        """
        text = self.text(name)
        match kind or self.type_of(name):
            case SchemaType.PROTOBUF:
                found = [(each, each) for each in _IMPORT.findall(_COMMENT.sub("", text))]
            case SchemaType.AVRO:
                used = self._avro_names(name, text)[1]
                files = {each: f"{each}.avsc" for each in used} if names is None else names
                found = [(each, files[each]) for each in used if each in files]
            case _:
                directory = os.path.dirname(name)
                found = [
                    (each, os.path.normpath(os.path.join(directory, each.partition("#")[0])))
                    for each in _json_references(self._parsed(name, text))
                ]
        return [
            SchemaReference(each, file, 1)
            for each, file in dict(found).items()
            if file != name and self.has(file)
        ]

    def _parsed(self, name: str, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the schema is not JSON: {error}", path=os.path.join(self.root, name)
            ) from error

    def _avro_names(self, name: str, text: str) -> tuple[list[str], list[str]]:
        """Return the full names that an Avro schema defines, and the names that it only uses."""
        defined: dict[str, None] = {}
        used: dict[str, None] = {}
        try:
            _collect_avro(self._parsed(name, text), "", defined, used)
        except RecursionError as error:
            raise InputError(
                "the schema is nested too deeply", path=os.path.join(self.root, name)
            ) from error
        return list(defined), [each for each in used if each not in defined]

    def schemas(self, entries: Iterable[_Entry]) -> list[Schema]:
        """Return the schemas of entries."""
        entries = list(entries)
        kinds = {entry.file: entry.type or self.type_of(entry.file) for entry in entries}
        names = {
            each: file
            for file, kind in kinds.items()
            if kind is SchemaType.AVRO
            for each in self._avro_names(file, self.text(file))[0]
        }
        found = []
        for entry in entries:
            text = self.text(entry.file)
            kind = kinds[entry.file]
            if entry.references is None:
                references = self.references(entry.file, names, kind)
            else:
                references = [SchemaReference(*astuple(one)) for one in entry.references]
            subjects = entry.subjects
            if subjects is None:
                subjects = (SubjectVersion(entry.file, 1),)
            found.append(
                Schema(
                    entry.id,
                    entry.guid or guid_of(text, references),
                    kind,
                    text,
                    tuple(references),
                    subjects,
                    entry.context,
                    entry.rule_types,
                )
            )
        return found


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return not os.path.isabs(name) and ".." not in parts and "\0" not in name


def _collect_avro(
    schema: Any, namespace: str, defined: dict[str, None], used: dict[str, None]
) -> None:
    """Collect the full names that a schema defines and uses."""
    if isinstance(schema, str):
        used[schema if "." in schema or not namespace else f"{namespace}.{schema}"] = None
    elif isinstance(schema, list):
        for branch in schema:
            _collect_avro(branch, namespace, defined, used)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in _NAMED and isinstance(schema.get("name"), str):
            given = schema.get("namespace")
            space, _, _ = schema["name"].rpartition(".")
            namespace = space or (given if isinstance(given, str) else namespace)
            name = schema["name"].rpartition(".")[2]
            defined[f"{namespace}.{name}" if namespace else name] = None
            for field in schema.get("fields") or ():
                if isinstance(field, dict):
                    _collect_avro(field.get("type"), namespace, defined, used)
        elif kind in ("array", "map"):
            _collect_avro(schema.get("items", schema.get("values")), namespace, defined, used)
        else:
            _collect_avro(kind, namespace, defined, used)


def _json_references(schema: Any) -> list[str]:
    """Return each ``$ref`` of a JSON Schema to another schema."""
    found, rest = [], [schema]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            target = each.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                found.append(target)
            rest += each.values()
        elif isinstance(each, list):
            rest += each
    return found


def write_folder(schemas: Schemas, chosen: Iterable[Schema], folder: str) -> list[str]:
    """Durably write schemas to files for `schemas_of_folder`; return the names of the files.

    The settings of their subjects are taken from `schemas`. Raises `PublishError` if a file cannot
    be written.
    """
    entries: list[_Entry] = []
    written: set[str] = set()
    settings: dict[str, SubjectSettings] = {}
    for schema in chosen:
        name = _file_name(schema, written)
        written.add(name)
        _write(os.path.join(folder, name), schema.text.encode())
        entries.append(
            _Entry(
                name,
                schema.schema_id,
                schema.type,
                schema.guid,
                schema.context,
                schema.subjects,
                tuple(_Reference(*astuple(reference)) for reference in schema.references),
                schema.rule_types,
            )
        )
        subjects = {version.subject for version in schema.subjects}
        settings |= {name: schemas.settings[name] for name in subjects & schemas.settings.keys()}
    manifest = _Manifest(schemas=entries, settings=dict(sorted(settings.items())))
    _write(os.path.join(folder, MANIFEST), msgspec_json.format(msgspec_json.encode(manifest)))
    names = [*written, MANIFEST]
    sync([os.path.join(folder, name) for name in names], "make the schemas durable")
    return names


def written_names(folder: str) -> set[str]:
    """Return the names of the files that `write_folder` wrote to a folder."""
    return {MANIFEST, *(entry.file for entry in _Folder(folder).manifest().schemas or ())}


def _file_name(schema: Schema, taken: set[str]) -> str:
    """Return a name for the file of a schema, which contains its first subject and version."""
    if schema.subjects:
        first = schema.subjects[0]
        name = f"{quote(first.subject, safe='')[:_MAX_NAME_BYTES]}-v{first.version}"
    else:
        name = f"id-{schema.schema_id}"
    file = f"{name.lstrip('.')}{schema.type.ending}"
    return f"{name.lstrip('.')}-{schema.guid}{schema.type.ending}" if file in taken else file


def _write(path: str, data: bytes) -> None:
    with publishing(path, "write the schema"):
        Path(path).write_bytes(data)
