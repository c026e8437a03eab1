"""The layouts of files that other tools export: their file names, and the contents of each file.

Sources: Spark's ``kafka`` source; kcat's ``json.c``; Confluent's ``TopicPartitionWriter`` and
``KeyValueHeaderRecordWriterProvider``; Aiven's ``TopicPartitionRecordGrouper`` and
``OutputFieldType``. `kafka_index.commands.import_.table_files` reads the files.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from kafka_index.commands.import_.import_columns import KCAT_COLUMNS
from kafka_index.commands.import_.request import ImportLayout
from kafka_index.commands.import_.table_files import (
    FIELDS,
    FileLayout,
    TableFile,
    Text,
    TextOf,
    column_names,
    errors_of,
    is_typed,
    list_files,
    list_table_files,
)
from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.format.integers import INT64_MAX

_CONVERTERS = {
    "key.converter": "key",
    "value.converter": "value",
    "header.converter": "headers",
}
#: The converters of Kafka Connect, by the last word of their class.
_TEXTS = {
    "string": Text.STRING,
    "stringconverter": Text.STRING,
    "simpleheaderconverter": Text.STRING,
    "bytes": Text.BASE64,
    "bytearrayconverter": Text.BASE64,
    "json": Text.JSON,
    "jsonconverter": Text.JSON,
}
_OFFSETS, _PACKED = "offsets", "packed"
_TEMPLATE, _DELIMITER = "file.name.template", "file.delim"
_CSV_FIELDS, _CSV_VALUE = "format.output.fields", "format.output.fields.value.encoding"
_PROPERTIES = (*_CONVERTERS, _OFFSETS, _TEMPLATE, _DELIMITER, _CSV_FIELDS, _CSV_VALUE)
_DEFAULT_TEMPLATE = "{{topic}}-{{partition}}-{{start_offset}}"
_DEFAULT_DELIMITER = "+"
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*(?::[^}]*)?\}\}")
_PATTERNS = {
    "topic": r"(?P<topic>[a-zA-Z0-9._-]+)",
    "partition": r"(?P<partition>\d+)",
    "start_offset": r"(?P<offset>\d+)",
    "timestamp": r"\d+",
}
_SPARK = frozenset(("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"))

#: The files that Confluent's connector writes of the same records, and the columns in them.
_VIEWS = {"keys": "key", "value": "value", "headers": "headers"}
_TIMELESS = "without timestamps in the files, records get the time of the import"


@dataclass(frozen=True, slots=True)
class LayoutProperties:
    """The settings of a sink connector that its files do not contain."""

    texts: TextOf = field(default_factory=TextOf)
    is_packed: bool = False
    template: str = _DEFAULT_TEMPLATE
    delimiter: str = _DEFAULT_DELIMITER
    csv_fields: tuple[str, ...] = ()
    csv_base64: bool = True

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> LayoutProperties:
        """Parse properties; raises `ConfigError` for an unknown name or value."""
        for name in properties:
            if name not in _PROPERTIES:
                near = difflib.get_close_matches(name, _PROPERTIES, n=1)
                raise ConfigError(
                    f"{name} is not a property of a layout",
                    expected=f"one of {', '.join(_PROPERTIES)}",
                    hint=f"did you mean {near[0]}?" if near else None,
                )
        texts = {}
        for name, column in _CONVERTERS.items():
            given = properties.get(name)
            if given is not None:
                texts[column] = _TEXTS.get(given.rpartition(".")[2].lower())
                if texts[column] is None:
                    raise _invalid(
                        name, "string, bytes, json, or the class of such a converter", given
                    )
        offsets = properties.get(_OFFSETS, _PACKED)
        if offsets != _PACKED:
            raise _invalid(_OFFSETS, _PACKED, offsets)
        csv = tuple(filter(None, properties.get(_CSV_FIELDS, "").replace(" ", "").split(",")))
        if not set(csv) <= set(FIELDS) or len(set(csv)) < len(csv):
            raise _invalid(_CSV_FIELDS, ", ".join(FIELDS), properties[_CSV_FIELDS])
        encoding = properties.get(_CSV_VALUE, "base64")
        if encoding not in ("base64", "none"):
            raise _invalid(_CSV_VALUE, "base64 or none", encoding)
        if not properties.get(_DELIMITER, _DEFAULT_DELIMITER):
            raise _invalid(_DELIMITER, "a text", "")
        return cls(
            TextOf(**texts),
            _OFFSETS in properties,
            properties.get(_TEMPLATE, _DEFAULT_TEMPLATE),
            properties.get(_DELIMITER, _DEFAULT_DELIMITER),
            csv,
            encoding == "base64",
        )


def _invalid(name: str, expected: str, found: str) -> ConfigError:
    return ConfigError(f"{name} has an invalid value", expected=expected, found=repr(found))


def list_layout_files(
    inputs: Sequence[str], layout: ImportLayout | None, properties: Mapping[str, str]
) -> tuple[list[TableFile], list[str]]:
    """List the files of inputs with their layout; None is the layout of `export`.

    Also returns notices: sentences for users about the limits of these files.
    """
    given = LayoutProperties.of_properties(properties)
    if layout is None:
        return list_table_files(inputs), []
    paths = list_files(inputs)
    notices = []
    if layout is ImportLayout.AUTO:
        recognised = _recognised(paths, given)
        if recognised is None:
            notices.append("the files have the columns of kafka-index's own export")
            return list_table_files(inputs), notices
        layout = recognised
        notices.append(f"the files are read with the layout {layout}")
    if layout in (ImportLayout.SPARK, ImportLayout.KCAT):
        default = Text.BASE64 if layout is ImportLayout.SPARK else Text.STRING
        texts = TextOf(*(text or default for text in given.texts))
        base = FileLayout(str(layout), (*FIELDS, "topic", "partition", "timestampType"), texts)
        return [TableFile(path, layout=base) for path in paths], [*notices, *_json_notices(base)]
    is_confluent = layout is ImportLayout.CONFLUENT_S3
    layouts = _with_ends((_confluent_layouts if is_confluent else _aiven_layouts)(paths, given))
    files = [TableFile(path, layout=each) for path, each in layouts]
    return files, [*notices, *_notices(*layouts[0])]


def _notices(path: str, layout: FileLayout) -> list[str]:
    """Return notices about the contents that files of a layout lack."""
    found = []
    if "timestamp" not in layout.names:
        found.append(_TIMELESS)
    if layout.counts_offsets:
        found.append(
            "consecutive offsets are assigned, starting at the offsets in the file names"
            + (
                ", without the gaps that the files do not show"
                if layout.is_packed
                else "; the last file of a partition is assumed to have no gaps"
            )
        )
    if "headers" not in layout.names:
        found.append("the files contain no headers")
    elif layout.kind == ImportLayout.AIVEN_S3 and is_typed(path):
        found.append(
            "headers are maps in these files: repeated keys and the order of headers are lost"
        )
    if layout.csv_fields:
        found.append("CSV does not distinguish null from an empty value: null is written")
    return [*found, *_json_notices(layout)]


def _json_notices(layout: FileLayout) -> list[str]:
    """Return notices about the columns that are serialized again as JSON."""
    return [
        f"{name} is written as JSON text, which may differ from the bytes of the original record"
        for name, text in zip(TextOf._fields, layout.texts, strict=True)
        if text is Text.JSON and name in layout.names
    ]


def _recognised(paths: Sequence[str], given: LayoutProperties) -> ImportLayout | None:
    """Detect the layout of all files; None for files of `export`."""
    names = [os.path.basename(path) for path in paths]
    if all(_confluent_pattern(_DEFAULT_DELIMITER).fullmatch(name) for name in names):
        return ImportLayout.CONFLUENT_S3
    columns = set(_columns(paths[0]))
    if columns >= {*_SPARK, "leader_epoch"}:
        return None
    if _SPARK <= columns <= {*_SPARK, "headers"}:
        return ImportLayout.SPARK
    if columns >= KCAT_COLUMNS and "value" not in columns:
        return ImportLayout.KCAT
    pattern = _aiven_pattern(given.template)
    if all(map(pattern.search, paths)) and columns and columns <= set(FIELDS):
        return ImportLayout.AIVEN_S3
    raise InputError(
        "the layout of the files is not recognised",
        path=paths[0],
        found=", ".join(sorted(columns)) or "no columns",
        hint="give it: spark, kcat, confluent-s3 or aiven-s3",
    )


def _columns(path: str) -> tuple[str, ...]:
    with errors_of(TableFile(path)):
        return column_names(path)


def _confluent_pattern(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    return re.compile(
        rf"(?P<topic>[a-zA-Z0-9._-]+?){mark}(?P<partition>\d+){mark}(?P<offset>\d+)"
        r"(?P<view>\.keys|\.headers)?(?P<ending>\..+)"
    )


def _confluent_layouts(
    paths: Sequence[str], given: LayoutProperties
) -> list[tuple[str, FileLayout]]:
    """Return the files of values, each with its files of keys and headers."""
    pattern = _confluent_pattern(given.delimiter)
    views: dict[tuple[str, str], dict[str, str]] = {}
    parsed = {}
    for path in paths:
        folder, name = os.path.split(path)
        match = pattern.fullmatch(name)
        if match is None:
            raise _wrong_name(
                path, f"TOPIC{given.delimiter}PARTITION{given.delimiter}OFFSET.EXTENSION"
            )
        start = (folder, name[: match.end("offset")])
        view = (match["view"] or ".value")[1:]
        if view in views.setdefault(start, {}):
            raise InputError(f"two files of the same {view}", path=path, found=views[start][view])
        views[start][view] = path
        parsed[start] = match
    with_views = {frozenset(files) for files in views.values()}
    for files in views.values():
        path = files.get("value") or next(iter(files.values()))
        if "value" not in files:
            raise InputError(
                "a file of keys or headers without a file of values: the connector writes "
                "tombstones like this, without their offsets",
                path=path,
                hint="omit these files",
            )
        if len(with_views) > 1 and set(files) != set().union(*with_views):
            raise InputError(
                "some files of values have a file of keys or headers, and this one does not",
                path=path,
            )
    columns = next(iter(with_views))
    names = ("topic", "partition", "offset", *(_VIEWS[view] for view in _VIEWS if view in columns))
    base = FileLayout("confluent-s3", names, given.texts, is_packed=given.is_packed)
    return [
        (
            files["value"],
            replace(
                _numbered(base, parsed[start]),
                keys=files.get("keys"),
                headers=files.get("headers"),
            ),
        )
        for start, files in views.items()
    ]


def _aiven_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of paths that end with a name of a template."""
    parts, end, seen = [], 0, set()
    for match in _VARIABLE.finditer(template):
        name = match[1]
        if name not in _PATTERNS:
            raise ConfigError(
                f"{_TEMPLATE} has a variable other than topic, partition and offset",
                expected=", ".join(_PATTERNS),
                found=name,
            )
        known = f"(?P={'offset' if name == 'start_offset' else name})"
        parts += [re.escape(template[end : match.start()])]
        parts += [known if name in seen and name != "timestamp" else _PATTERNS[name]]
        seen.add(name)
        end = match.end()
    parts.append(re.escape(template[end:]))
    if not {"topic", "partition", "start_offset"} <= seen:
        raise _invalid(_TEMPLATE, "topic, partition and start_offset in it", template)
    # Names of the default template end only with .avro and the suffix of the compression.
    endings = r"(\.avro)?(\.gz|\.snappy|\.zst)?" if template == _DEFAULT_TEMPLATE else ""
    return re.compile(f"(^|(?<=/)){''.join(parts)}{endings}$")


def _aiven_layouts(paths: Sequence[str], given: LayoutProperties) -> list[tuple[str, FileLayout]]:
    pattern = _aiven_pattern(given.template)
    fields: tuple[str, ...] = given.csv_fields or _columns(paths[0])
    if not fields or not set(fields) <= set(FIELDS):
        raise InputError(
            "the first file has fields that are not fields of a record",
            path=paths[0],
            expected=", ".join(FIELDS),
            found=", ".join(fields) or "none, as in CSV",
            hint=f"for CSV, give its fields in order with the property {_CSV_FIELDS}",
        )
    names = tuple(dict.fromkeys((*fields, "topic", "partition", "offset")))
    base = FileLayout(
        "aiven-s3",
        names,
        given.texts,
        csv_fields=given.csv_fields,
        csv_base64=given.csv_base64,
        is_packed=given.is_packed,
        counts_offsets="offset" not in fields,
    )
    found = []
    for path in paths:
        match = pattern.search(path)
        if match is None:
            raise _wrong_name(path, given.template)
        found.append((path, _numbered(base, match)))
    return found


def _numbered(base: FileLayout, match: re.Match[str]) -> FileLayout:
    return replace(
        base,
        topic=match["topic"],
        partition=int(match["partition"]),
        start_offset=int(match["offset"]),
    )


def _wrong_name(path: str, expected: str) -> InputError:
    return InputError(
        "the name of the file does not match the layout",
        path=path,
        expected=expected,
        hint="omit the file, or give the property that determines the names",
    )


def _with_ends(layouts: Sequence[tuple[str, FileLayout]]) -> list[tuple[str, FileLayout]]:
    """Sort the files by topic, partition and offset; add the start offset of the next file."""
    ordered = sorted(layouts, key=lambda pair: (*_partition_of(pair[1]), pair[1].start_offset))
    found = []
    for (path, layout), following in zip_longest(ordered, ordered[1:]):
        end = None
        if following is not None and _partition_of(following[1]) == _partition_of(layout):
            end = following[1].start_offset
            if end == layout.start_offset and layout.counts_offsets:
                raise InputError(
                    "two files of a partition start at the same offset",
                    path=path,
                    found=following[0],
                )
        if layout.start_offset >= INT64_MAX:
            raise InputError("the offset in the name has no successor", path=path)
        found.append((path, replace(layout, end_offset=end)))
    return found


def _partition_of(layout: FileLayout) -> tuple[str | None, int]:
    return layout.topic, layout.partition
