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
    FieldEncodings,
    FileLayout,
    TableFile,
    TextEncoding,
    column_names,
    convert_read_errors,
    is_avro_or_parquet,
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
#: The encodings of Kafka Connect's converters, by the last word of the class name.
_ENCODINGS = {
    "string": TextEncoding.STRING,
    "stringconverter": TextEncoding.STRING,
    "simpleheaderconverter": TextEncoding.STRING,
    "bytes": TextEncoding.BASE64,
    "bytearrayconverter": TextEncoding.BASE64,
    "json": TextEncoding.JSON,
    "jsonconverter": TextEncoding.JSON,
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
_SPARK_COLUMNS = frozenset(
    ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
)

#: Suffixes of Confluent's separate files of keys, values and headers, with their columns.
_VIEWS = {"keys": "key", "value": "value", "headers": "headers"}
_NO_TIMESTAMPS = "the files contain no timestamps: records get the time of the import"


@dataclass(frozen=True, slots=True)
class LayoutProperties:
    """The settings of a sink connector that its files do not contain."""

    texts: FieldEncodings = field(default_factory=FieldEncodings)
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
                close_names = difflib.get_close_matches(name, _PROPERTIES, n=1)
                raise ConfigError(
                    f"{name} is not a layout property",
                    expected=f"one of {', '.join(_PROPERTIES)}",
                    hint=f"did you mean {close_names[0]}?" if close_names else None,
                )
        encodings = {}
        for name, column in _CONVERTERS.items():
            converter = properties.get(name)
            if converter is not None:
                encodings[column] = _ENCODINGS.get(converter.rpartition(".")[2].lower())
                if encodings[column] is None:
                    raise _invalid(
                        name, "string, bytes, json, or the class of such a converter", converter
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
            FieldEncodings(**encodings),
            _OFFSETS in properties,
            properties.get(_TEMPLATE, _DEFAULT_TEMPLATE),
            properties.get(_DELIMITER, _DEFAULT_DELIMITER),
            csv,
            encoding == "base64",
        )


def _invalid(name: str, expected: str, value: str) -> ConfigError:
    return ConfigError(f"{name} has an invalid value", expected=expected, found=repr(value))


def list_layout_files(
    inputs: Sequence[str], layout: ImportLayout | None, properties: Mapping[str, str]
) -> tuple[list[TableFile], list[str]]:
    """List the files of inputs with their layout; None is the layout of `export`.

    The second result contains notices for users about the limits of these files.
    """
    layout_properties = LayoutProperties.of_properties(properties)
    if layout is None:
        return list_table_files(inputs), []
    paths = list_files(inputs)
    notices = []
    if layout is ImportLayout.AUTO:
        detected_layout = _detect_layout(paths, layout_properties)
        if detected_layout is None:
            notices.append("the files have the columns that kafka-index export writes")
            return list_table_files(inputs), notices
        layout = detected_layout
        notices.append(f"the files are read with the layout {layout}")
    if layout in (ImportLayout.SPARK, ImportLayout.KCAT):
        default = TextEncoding.BASE64 if layout is ImportLayout.SPARK else TextEncoding.STRING
        encodings = FieldEncodings(*(encoding or default for encoding in layout_properties.texts))
        base = FileLayout(str(layout), (*FIELDS, "topic", "partition", "timestampType"), encodings)
        return [TableFile(path, layout=base) for path in paths], [*notices, *_json_notices(base)]
    is_confluent = layout is ImportLayout.CONFLUENT_S3
    layouts = _add_end_offsets(
        (_confluent_layouts if is_confluent else _aiven_layouts)(paths, layout_properties)
    )
    files = [TableFile(path, layout=file_layout) for path, file_layout in layouts]
    return files, [*notices, *_layout_notices(*layouts[0])]


def _layout_notices(path: str, layout: FileLayout) -> list[str]:
    """Return notices about the contents that files of a layout lack."""
    notices = []
    if "timestamp" not in layout.names:
        notices.append(_NO_TIMESTAMPS)
    if layout.counts_offsets:
        notices.append(
            "consecutive offsets are assigned, starting at the offsets in the file names"
            + (
                ", without the gaps that the files do not show"
                if layout.is_packed
                else "; the last file of a partition is assumed to have no gaps"
            )
        )
    if "headers" not in layout.names:
        notices.append("the files contain no headers")
    elif layout.kind == ImportLayout.AIVEN_S3 and is_avro_or_parquet(path):
        notices.append("the files contain headers as maps, without repeated keys and their order")
    if layout.csv_fields:
        notices.append("CSV does not distinguish null from an empty value: records get null")
    return [*notices, *_json_notices(layout)]


def _json_notices(layout: FileLayout) -> list[str]:
    """Return notices about the columns that are serialized again as JSON."""
    return [
        f"{name} is written as JSON text, which may differ from the bytes of the original record"
        for name, encoding in zip(FieldEncodings._fields, layout.texts, strict=True)
        if encoding is TextEncoding.JSON and name in layout.names
    ]


def _detect_layout(
    paths: Sequence[str], layout_properties: LayoutProperties
) -> ImportLayout | None:
    """Detect the layout of the files; return None for files of `export`."""
    names = [os.path.basename(path) for path in paths]
    if all(_confluent_pattern(_DEFAULT_DELIMITER).fullmatch(name) for name in names):
        return ImportLayout.CONFLUENT_S3
    columns = set(_columns(paths[0]))
    if columns >= {*_SPARK_COLUMNS, "leader_epoch"}:
        return None
    if _SPARK_COLUMNS <= columns <= {*_SPARK_COLUMNS, "headers"}:
        return ImportLayout.SPARK
    if columns >= KCAT_COLUMNS and "value" not in columns:
        return ImportLayout.KCAT
    pattern = _aiven_pattern(layout_properties.template)
    if all(map(pattern.search, paths)) and columns and columns <= set(FIELDS):
        return ImportLayout.AIVEN_S3
    raise InputError(
        "the layout of the files is not recognised",
        path=paths[0],
        found=", ".join(sorted(columns)) or "no columns",
        hint="give --layout spark, kcat, confluent-s3 or aiven-s3",
    )


def _columns(path: str) -> tuple[str, ...]:
    with convert_read_errors(TableFile(path)):
        return column_names(path)


def _confluent_pattern(delimiter: str) -> re.Pattern[str]:
    separator = re.escape(delimiter)
    return re.compile(
        rf"(?P<topic>[a-zA-Z0-9._-]+?){separator}(?P<partition>\d+){separator}(?P<offset>\d+)"
        r"(?P<view>\.keys|\.headers)?(?P<ending>\..+)"
    )


def _confluent_layouts(
    paths: Sequence[str], layout_properties: LayoutProperties
) -> list[tuple[str, FileLayout]]:
    """Return the layout of each file of values, with its files of keys and headers."""
    pattern = _confluent_pattern(layout_properties.delimiter)
    views: dict[tuple[str, str], dict[str, str]] = {}
    name_matches = {}
    for path in paths:
        folder, name = os.path.split(path)
        match = pattern.fullmatch(name)
        if match is None:
            raise _wrong_name(
                path,
                f"TOPIC{layout_properties.delimiter}PARTITION{layout_properties.delimiter}OFFSET.EXTENSION",
            )
        name_start = (folder, name[: match.end("offset")])
        view = (match["view"] or ".value")[1:]
        if view in views.setdefault(name_start, {}):
            raise InputError(
                f"two files contain the same {view}", path=path, found=views[name_start][view]
            )
        views[name_start][view] = path
        name_matches[name_start] = match
    view_sets = {frozenset(files) for files in views.values()}
    for files in views.values():
        path = files.get("value") or next(iter(files.values()))
        if "value" not in files:
            raise InputError(
                "the file of keys or headers has no file of values. The connector writes only "
                "these files for tombstones, without offsets",
                path=path,
                hint="omit the file",
            )
        if len(view_sets) > 1 and set(files) != set().union(*view_sets):
            raise InputError(
                "the file of keys or headers is missing, but other files of values have it",
                path=path,
            )
    view_names = next(iter(view_sets))
    names = (
        "topic",
        "partition",
        "offset",
        *(_VIEWS[view] for view in _VIEWS if view in view_names),
    )
    base = FileLayout(
        "confluent-s3", names, layout_properties.texts, is_packed=layout_properties.is_packed
    )
    return [
        (
            files["value"],
            replace(
                _place_in_partition(base, name_matches[name_start]),
                keys=files.get("keys"),
                headers=files.get("headers"),
            ),
        )
        for name_start, files in views.items()
    ]


def _aiven_pattern(template: str) -> re.Pattern[str]:
    """Return a pattern for paths whose file names have the form of a template."""
    pattern_parts, literal_start, used_variables = [], 0, set()
    for match in _VARIABLE.finditer(template):
        name = match[1]
        if name not in _PATTERNS:
            raise ConfigError(
                f"{_TEMPLATE} contains an unsupported variable",
                expected=", ".join(_PATTERNS),
                found=name,
            )
        back_reference = f"(?P={'offset' if name == 'start_offset' else name})"
        pattern_parts += [re.escape(template[literal_start : match.start()])]
        pattern_parts += [
            back_reference if name in used_variables and name != "timestamp" else _PATTERNS[name]
        ]
        used_variables.add(name)
        literal_start = match.end()
    pattern_parts.append(re.escape(template[literal_start:]))
    if not {"topic", "partition", "start_offset"} <= used_variables:
        raise _invalid(_TEMPLATE, "a template with topic, partition and start_offset", template)
    # With the default template, names may end with .avro and the suffix of the compression.
    endings = r"(\.avro)?(\.gz|\.snappy|\.zst)?" if template == _DEFAULT_TEMPLATE else ""
    return re.compile(f"(^|(?<=/)){''.join(pattern_parts)}{endings}$")


def _aiven_layouts(
    paths: Sequence[str], layout_properties: LayoutProperties
) -> list[tuple[str, FileLayout]]:
    pattern = _aiven_pattern(layout_properties.template)
    fields: tuple[str, ...] = layout_properties.csv_fields or _columns(paths[0])
    if not fields or not set(fields) <= set(FIELDS):
        raise InputError(
            "the first file has no fields, or other fields than a record",
            path=paths[0],
            expected=", ".join(FIELDS),
            found=", ".join(fields) or "no fields (as in CSV)",
            hint=f"for CSV, give the fields of a line with the property {_CSV_FIELDS}",
        )
    names = tuple(dict.fromkeys((*fields, "topic", "partition", "offset")))
    base = FileLayout(
        "aiven-s3",
        names,
        layout_properties.texts,
        csv_fields=layout_properties.csv_fields,
        csv_base64=layout_properties.csv_base64,
        is_packed=layout_properties.is_packed,
        counts_offsets="offset" not in fields,
    )
    layouts = []
    for path in paths:
        match = pattern.search(path)
        if match is None:
            raise _wrong_name(path, layout_properties.template)
        layouts.append((path, _place_in_partition(base, match)))
    return layouts


def _place_in_partition(base: FileLayout, match: re.Match[str]) -> FileLayout:
    return replace(
        base,
        topic=match["topic"],
        partition=int(match["partition"]),
        start_offset=int(match["offset"]),
    )


def _wrong_name(path: str, expected: str) -> InputError:
    return InputError(
        "the file name does not match the layout",
        path=path,
        expected=expected,
        hint="omit the file, or give the property file.name.template or file.delim",
    )


def _add_end_offsets(layouts: Sequence[tuple[str, FileLayout]]) -> list[tuple[str, FileLayout]]:
    """Sort the files by topic, partition and offset; set the end offset of each file."""
    sorted_layouts = sorted(
        layouts, key=lambda pair: (*_partition_of(pair[1]), pair[1].start_offset)
    )
    layouts_with_ends = []
    for (path, layout), following in zip_longest(sorted_layouts, sorted_layouts[1:]):
        end_offset = None
        if following is not None and _partition_of(following[1]) == _partition_of(layout):
            end_offset = following[1].start_offset
            if end_offset == layout.start_offset and layout.counts_offsets:
                raise InputError(
                    "two files of a partition start at the same offset",
                    path=path,
                    found=following[0],
                )
        if layout.start_offset >= INT64_MAX:
            raise InputError("the offset in the file name is too large", path=path)
        layouts_with_ends.append((path, replace(layout, end_offset=end_offset)))
    return layouts_with_ends


def _partition_of(layout: FileLayout) -> tuple[str | None, int]:
    return layout.topic, layout.partition
