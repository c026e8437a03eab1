"""Schemas in files: a folder of ``.avsc``, ``.proto`` and ``.json`` files, or one file.

``schemas.json`` in the folder maps topics to files, and contains the ids of the schemas. The
command ``schemas --output`` writes ``schemas.json``. Users can also write it, such as:

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
    compute_guid,
)

#: The file in a folder that lists the schemas of the folder.
MANIFEST = "schemas.json"
_TYPES = {kind.ending: kind for kind in SchemaType}
_MAX_NAME_BYTES = 180
_IMPORT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+)?["']([^"'\n]+)["']\s*;""")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_NAMED_TYPES = ("record", "error", "enum", "fixed")


class _Reference(Struct, forbid_unknown_fields=True):
    name: str
    subject: str
    version: VersionNumber = 1


class _Entry(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An entry of ``schemas.json`` for a schema; only `file` is required."""

    file: str
    id: SchemaId | None = None
    type: SchemaType | None = None
    guid: str | None = None
    context: str = DEFAULT_CONTEXT
    subjects: tuple[SubjectVersion, ...] | None = None
    references: tuple[_Reference, ...] | None = None
    rule_types: tuple[str, ...] = ()


class _Topic(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Schema files of a topic's keys and values, optionally with ``#`` and the name of a type."""

    key: str | None = None
    value: str | None = None


class _Manifest(Struct, omit_defaults=True, forbid_unknown_fields=True):
    topics: dict[str, _Topic] = {}
    schemas: list[_Entry] | None = None
    settings: dict[str, SubjectSettings] = {}


def read_folder(path: str) -> Schemas:
    """Read the schemas of a local folder, or of one file of a schema.

    If ``schemas.json`` lists no schemas, all files are read. The subject of a schema is the path of
    its file, relative to the folder. Files refer to each other by import paths (Protobuf), full
    names (Avro) and relative paths (JSON). Raises `InputError` for a file that cannot be read, is
    malformed, or is not in the folder.
    """
    refuse_remote(
        path, "schemas are read from a local folder", hint="copy the schemas to a local folder"
    )
    if os.path.isdir(path):
        root = path
    elif os.path.basename(path) == MANIFEST:
        root = os.path.dirname(path) or "."
    else:
        return _read_file(path)
    folder = _Folder(root)
    manifest = folder.read_manifest()
    if manifest.schemas is None:
        entries = [_Entry(name) for name in folder.list_files()]
    else:
        entries = list(manifest.schemas)
        listed_files = {entry.file for entry in entries}
        mapped_files = {file for file, _ in _topic_files(manifest)}
        entries += [_Entry(name) for name in sorted(mapped_files - listed_files)]
    if not entries:
        raise InputError(
            "the folder has no schema files",
            path=path,
            expected=f"{MANIFEST}, or files that end in {', '.join(_TYPES)}",
        )
    schemas = folder.read_schemas(entries)
    by_file = {entry.file: schema for entry, schema in zip(entries, schemas, strict=True)}
    topics = _map_named_files(path, by_file)
    for name, topic in manifest.topics.items():
        for file_and_type, is_key in ((topic.key, True), (topic.value, False)):
            if file_and_type is not None:
                file, type_name = _split_type_name(file_and_type)
                topics[name, is_key] = TopicSchema(by_file[file], type_name)
    return Schemas(
        schemas,
        origin=path,
        topics=topics,
        settings=manifest.settings,
        has_foreign_ids=True,
        main=schemas[0] if len(schemas) == 1 else None,
    )


def _map_named_files(
    root: str, schemas: Mapping[str, Schema]
) -> dict[tuple[str, bool], TopicSchema]:
    """Map topics to the schema files that are named after a topic's subject and have no ID.

    The subjects are those of the strategy TopicName: TOPIC-key and TOPIC-value.
    """
    topic_schemas: dict[tuple[str, bool], TopicSchema] = {}
    files: dict[tuple[str, bool], str] = {}
    for file, schema in schemas.items():
        topic, _, part = os.path.splitext(os.path.basename(file))[0].rpartition("-")
        if schema.schema_id is not None or not topic or part not in ("key", "value"):
            continue
        topic_part = topic, part == "key"
        if topic_part in files:
            raise InputError(
                f"two schema files are named after the {part}s of topic {topic}",
                path=root,
                found=f"{files[topic_part]}, {file}",
                hint=f"map the topic to a file in {MANIFEST}",
            )
        files[topic_part], topic_schemas[topic_part] = file, TopicSchema(schema)
    return topic_schemas


def _read_file(path: str) -> Schemas:
    """Read a schema file, and the files in the same folder to which the schema refers."""
    folder = _Folder(os.path.dirname(path) or ".")
    names = [os.path.basename(path)]
    # The loop appends further files to `names`: those to which a file refers.
    for name in names:
        for reference in folder.read_references(name, type_files=None):
            if folder.contains(reference.subject) and reference.subject not in names:
                names.append(reference.subject)
    schemas = folder.read_schemas([_Entry(name) for name in names])
    by_name = _map_named_files(folder.root, {names[0]: schemas[0]})
    return Schemas(schemas, origin=path, topics=by_name, has_foreign_ids=True, main=schemas[0])


def read_topic_schema(file_and_type: str) -> tuple[Schemas, TopicSchema]:
    """Return the schema that ``FILE#Type`` selects, and the schemas to which it may refer.

    Raises the errors of `read_folder`.
    """
    path, type_name = _split_type_name(file_and_type)
    if not os.path.isfile(path) and os.path.isfile(file_and_type):
        path, type_name = file_and_type, None
    schemas = _read_file(path)
    return schemas, TopicSchema(schemas.all[0], type_name)


def _split_type_name(file_and_type: str) -> tuple[str, str | None]:
    file, _, type_name = file_and_type.partition("#")
    return file, type_name or None


def _topic_files(manifest: _Manifest) -> Iterator[tuple[str, str | None]]:
    for topic in manifest.topics.values():
        for file_and_type in (topic.key, topic.value):
            if file_and_type is not None:
                yield _split_type_name(file_and_type)


@dataclass(slots=True)
class _Folder:
    root: str

    def read_manifest(self) -> _Manifest:
        path = os.path.join(self.root, MANIFEST)
        if not os.path.isfile(path):
            return _Manifest()
        try:
            return decoder_of(_Manifest).decode(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
        except MALFORMED as error:
            raise InputError(f"the file is not a list of schemas: {error}", path=path) from error

    def list_files(self) -> list[str]:
        """Return the paths of the schema files in the folder."""
        schema_files = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            relative_folder = os.path.relpath(folder, self.root)
            schema_files += [
                name if relative_folder == "." else f"{relative_folder}/{name}"
                for name in sorted(files)
                if os.path.splitext(name)[1] in _TYPES and not name.startswith(".")
            ]
        return [name for name in schema_files if name != MANIFEST]

    def contains(self, name: str) -> bool:
        return _is_inside(name) and os.path.isfile(os.path.join(self.root, name))

    def read_text(self, name: str) -> str:
        """Return the exact text of a file, because the GUID of a schema depends on it."""
        path = os.path.join(self.root, name)
        if not _is_inside(name):
            raise InputError("the schema file is outside of the folder", path=path)
        try:
            return Path(path).read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot read the schema: {error.strerror}", path=path) from error
        except UnicodeDecodeError as error:
            raise InputError(
                "the schema is not UTF-8", path=path, position_bytes=error.start
            ) from error

    def file_type(self, name: str) -> SchemaType:
        ending = os.path.splitext(name)[1]
        if ending not in _TYPES:
            raise InputError(
                "the file is not a schema file",
                path=os.path.join(self.root, name),
                expected=f"a name that ends in {', '.join(_TYPES)}",
            )
        return _TYPES[ending]

    def read_references(
        self, name: str, type_files: Mapping[str, str] | None, schema_type: SchemaType | None = None
    ) -> list[SchemaReference]:
        """Return the references of a file to other files.

        `type_files` maps Avro types to files. If it is None, the file of type NAME is
        ``NAME.avsc``.
        """
        text = self.read_text(name)
        match schema_type or self.file_type(name):
            case SchemaType.PROTOBUF:
                files = {path: path for path in _IMPORT.findall(_COMMENT.sub("", text))}
            case SchemaType.AVRO:
                used_names = self._avro_names(name, text)[1]
                if type_files is None:
                    files = {used_name: f"{used_name}.avsc" for used_name in used_names}
                else:
                    files = {n: type_files[n] for n in used_names if n in type_files}
            case _:
                directory = os.path.dirname(name)
                files = {
                    target: os.path.normpath(os.path.join(directory, target.partition("#")[0]))
                    for target in _json_references(self._parse_json(name, text))
                }
        return [
            SchemaReference(reference, file, 1)
            for reference, file in files.items()
            if file != name and self.contains(file)
        ]

    def _parse_json(self, name: str, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the schema is not JSON: {error}", path=os.path.join(self.root, name)
            ) from error

    def _avro_names(self, name: str, text: str) -> tuple[list[str], list[str]]:
        """Return the full names that an Avro schema defines, and the names that it only uses."""
        defined: dict[str, None] = {}
        used_names: dict[str, None] = {}
        try:
            _collect_avro_names(self._parse_json(name, text), "", defined, used_names)
        except RecursionError as error:
            raise InputError(
                "the schema is nested too deeply", path=os.path.join(self.root, name)
            ) from error
        return list(defined), [type_name for type_name in used_names if type_name not in defined]

    def read_schemas(self, entries: Iterable[_Entry]) -> list[Schema]:
        """Return the schemas of entries."""
        entries = list(entries)
        types = {entry.file: entry.type or self.file_type(entry.file) for entry in entries}
        names = {
            type_name: file
            for file, kind in types.items()
            if kind is SchemaType.AVRO
            for type_name in self._avro_names(file, self.read_text(file))[0]
        }
        schemas = []
        for entry in entries:
            text = self.read_text(entry.file)
            kind = types[entry.file]
            if entry.references is None:
                references = self.read_references(entry.file, names, kind)
            else:
                references = [SchemaReference(*values) for values in map(astuple, entry.references)]
            subjects = entry.subjects
            if subjects is None:
                subjects = (SubjectVersion(entry.file, 1),)
            schemas.append(
                Schema(
                    entry.id,
                    entry.guid or compute_guid(text, references),
                    kind,
                    text,
                    tuple(references),
                    subjects,
                    entry.context,
                    entry.rule_types,
                )
            )
        return schemas


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return not os.path.isabs(name) and ".." not in parts and "\0" not in name


def _collect_avro_names(
    schema: Any, namespace: str, defined_names: dict[str, None], used_names: dict[str, None]
) -> None:
    """Add the full names that an Avro schema defines and uses to two dicts."""
    if isinstance(schema, str):
        used_names[schema if "." in schema or not namespace else f"{namespace}.{schema}"] = None
    elif isinstance(schema, list):
        for branch in schema:
            _collect_avro_names(branch, namespace, defined_names, used_names)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in _NAMED_TYPES and isinstance(schema.get("name"), str):
            declared = schema.get("namespace", namespace)
            name_namespace = schema["name"].rpartition(".")[0]
            namespace = name_namespace or (declared if isinstance(declared, str) else namespace)
            name = schema["name"].rpartition(".")[2]
            defined_names[f"{namespace}.{name}" if namespace else name] = None
            for field in schema.get("fields") or ():
                if isinstance(field, dict):
                    _collect_avro_names(field.get("type"), namespace, defined_names, used_names)
        elif kind in ("array", "map"):
            inner_schema = schema.get("items", schema.get("values"))
            _collect_avro_names(inner_schema, namespace, defined_names, used_names)
        else:
            _collect_avro_names(kind, namespace, defined_names, used_names)


def _json_references(schema: Any) -> list[str]:
    """Return each ``$ref`` of a JSON Schema to another schema."""
    references, pending = [], [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            target = node.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                references.append(target)
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return references


def write_folder(schemas: Schemas, chosen: Iterable[Schema], folder: str) -> list[str]:
    """Durably write the chosen schemas to files for `read_folder`; return the file names.

    The settings of the chosen schemas' subjects are taken from `schemas`. Raises `PublishError` if
    a file cannot be written.
    """
    entries: list[_Entry] = []
    files: set[str] = set()
    settings: dict[str, SubjectSettings] = {}
    for schema in chosen:
        name = _file_name(schema, files)
        files.add(name)
        _write_file(os.path.join(folder, name), schema.text.encode())
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
    _write_file(os.path.join(folder, MANIFEST), msgspec_json.format(msgspec_json.encode(manifest)))
    names = [*files, MANIFEST]
    sync([os.path.join(folder, name) for name in names], "make the schemas durable")
    return names


def list_written_files(folder: str) -> set[str]:
    """Return the names of the files that `write_folder` wrote to a folder."""
    return {MANIFEST, *(entry.file for entry in _Folder(folder).read_manifest().schemas or ())}


def _file_name(schema: Schema, used_names: set[str]) -> str:
    """Return a name for the file of a schema, with the schema's first subject and version."""
    if schema.subjects:
        first_version = schema.subjects[0]
        name = f"{quote(first_version.subject, safe='')[:_MAX_NAME_BYTES]}-v{first_version.version}"
    else:
        name = f"id-{schema.schema_id}"
    file = f"{name.lstrip('.')}{schema.type.ending}"
    return f"{name.lstrip('.')}-{schema.guid}{schema.type.ending}" if file in used_names else file


def _write_file(path: str, data: bytes) -> None:
    with publishing(path, "write the schema"):
        Path(path).write_bytes(data)
