"""Parameters shared by several commands: logs, remote segments, records, Kafka settings.

Imports neither numpy nor pyarrow, so that command help is fast.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol, TypeAlias

from kafka_index.core.errors import ConfigError, argument_text
from kafka_index.core.format.config import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LogConfig,
    read_properties,
)
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.times import time_text
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.uris import TieredOptions, refuse_remote
from kafka_index.core.job.request import (
    TIME_HELP,
    ArgumentError,
    ChoiceKind,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    Moment,
    NamesKind,
    OptionSpec,
    Parameter,
    PathKind,
    PathsKind,
    Request,
    TextKind,
    TimeKind,
    TopicsKind,
    parameter,
    parameters,
)
from kafka_index.core.log.choices import Decode, DecodeErrors, Isolation

Path: TypeAlias = str | PathLike[str]
#: Data directories, partition directories, or globs of either.
Paths: TypeAlias = Path | Sequence[Path]
#: A regular expression that must match a topic's full name, or topic names.
Topics: TypeAlias = str | re.Pattern[str] | Collection[str]
#: Settings with Kafka's names: a file, a mapping, or loaded settings.
Config: TypeAlias = Path | Mapping[str, object] | LogConfig
#: Remote segments: one or several folders, or folders with options.
Tiered: TypeAlias = Path | Sequence[Path] | TieredOptions


class ArrowStream(Protocol):
    """A table of any library that exports Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows as a capsule."""


#: Rows: an object with Arrow's C stream interface, or dicts.
Table: TypeAlias = ArrowStream | Sequence[Mapping[str, Any]]


class TieredKind(Kind):
    """Remote segments: `TieredOptions`, or folders of objects."""

    def convert(self, value: Any, name: str, now: int) -> TieredOptions | None:  # noqa: ARG002
        return TieredOptions.from_argument(value)

    def options(self, parameter: Parameter, names: tuple[str, ...]) -> tuple[OptionSpec, ...]:
        """Return an option for each field of `TieredOptions`."""
        return (
            OptionSpec(names, parameter.help, Group.INPUT, "URI", is_multiple=True),
            OptionSpec(
                ("--tiered-format",),
                "Object layout of the tiered storage plugin; auto detects it from the object keys.",
                Group.TIERED,
                choices=("auto", "aiven", "local"),
            ),
            OptionSpec(
                ("--key-prefix",),
                "Only objects whose keys begin with PREFIX (key.prefix of Aiven's plugin).",
                Group.TIERED,
                "PREFIX",
            ),
            OptionSpec(
                ("--tiered-key",),
                "File with the private key of a key pair, for encrypted segments. May be repeated.",
                Group.TIERED,
                "KEYID=PEM",
                is_multiple=True,
            ),
            OptionSpec(
                ("--topic-id",),
                "ID of the topic to read, if several topics have the same name.  [default: the "
                "topic that was not deleted]",
                Group.TIERED,
                "ID",
                is_multiple=True,
            ),
        )

    def combine(self, values: Sequence[Any]) -> TieredOptions | None:
        """Build options from command-line texts."""
        uris, layout, prefix, keys, topic_ids = values
        if uris:
            return TieredOptions(
                uris, layout, prefix, topic_ids or (), _parse_key_files(keys or ())
            )
        names = ("--tiered-format", "--key-prefix", "--tiered-key", "--topic-id")
        for name, value in zip(names, values[1:], strict=True):
            if value is not None:
                raise ConfigError(f"{name} requires --tiered")
        return None


def _parse_key_files(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``ID=FILE`` texts; the key files are read on use."""
    files: dict[str, str] = {}
    for text in texts:
        key_id, separator, path = text.partition("=")
        if not (key_id and separator and path):
            raise ConfigError("--tiered-key is malformed", expected="KEYID=PEM", found=text)
        if key_id in files:
            raise ConfigError(f"--tiered-key: the key ID {key_id} is given twice")
        if not os.path.isfile(path):
            raise ConfigError(f"--tiered-key: {path} is not a file")
        files[key_id] = os.path.abspath(path)
    return tuple(files.items())


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Kafka settings of the user.

    Attributes
    ----------
    config : LogConfig
        Log settings, with Kafka's defaults.
    properties : mapping of str to str, optional
        All properties of a file or mapping, such as a broker's ``server.properties``.
    """

    config: LogConfig
    properties: Mapping[str, str] | None = None


DEFAULT_SETTINGS = KafkaSettings(LogConfig())


class SettingsKind(Kind):
    """Kafka settings: a file, a mapping, or a `LogConfig`; options override single settings.

    `overrides` are options for keyword arguments of `LogConfig.load`, each with a kind and a help
    text.
    """

    metavar = "FILE"

    def __init__(self, **overrides: tuple[Kind, str]) -> None:
        self._overrides = overrides

    def convert(self, value: Any, name: str, now: int) -> KafkaSettings:  # noqa: ARG002
        if value is None:
            return DEFAULT_SETTINGS
        if isinstance(value, KafkaSettings):
            return value
        if isinstance(value, LogConfig):
            return KafkaSettings(value)
        if isinstance(value, str | PathLike):
            return _load_settings(path_of(value, name))
        if isinstance(value, Mapping):
            properties = to_properties(value, name)
            return KafkaSettings(LogConfig.of_properties(properties), properties)
        raise ConfigError(
            f"{name} has the wrong type",
            expected="a path, a mapping of Kafka's names to values, or a LogConfig",
            found=argument_text(value),
        )

    def options(self, parameter: Parameter, names: tuple[str, ...]) -> tuple[OptionSpec, ...]:
        """Return ``--config`` and the overriding options."""
        overrides = (
            OptionSpec((f"--{key.replace('_', '-')}",), text, Group.SETTINGS, kind.metavar)
            for key, (kind, text) in self._overrides.items()
        )
        return (OptionSpec(names, parameter.help, Group.SETTINGS, self.metavar), *overrides)

    def combine(self, values: Sequence[Any]) -> KafkaSettings | None:
        """Load settings from a file, and apply overriding options."""
        path, *override_texts = values
        if path is None and all(text is None for text in override_texts):
            return None
        option_values = {
            key: None if value is None else kind.convert(value, f"--{key.replace('_', '-')}", 0)
            for (key, (kind, _)), value in zip(self._overrides.items(), override_texts, strict=True)
        }
        if path is None:
            return KafkaSettings(LogConfig.load(**option_values))
        return _load_settings(path_of(path, "--config"), **option_values)


def _load_settings(path: str, **overrides: int | None) -> KafkaSettings:
    """Load the settings of a file, which is read once."""
    properties = read_properties(path)
    return KafkaSettings(LogConfig.of_properties(properties, path=path, **overrides), properties)


class PairsKind(Kind):
    """Texts by name: a mapping, or repeated ``NAME=VALUE`` on the command line."""

    is_multiple = True

    def __init__(self, metavar: str = "NAME=VALUE", *, allows_numbers: bool = False) -> None:
        self.metavar = metavar
        self._allows_numbers = allows_numbers

    def convert(self, value: Any, name: str, now: int) -> dict[str, str]:  # noqa: ARG002
        if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
            value_types = (str, int, float) if self._allows_numbers else str
            return to_properties(value, name, value_types)
        pairs: dict[str, str] = {}
        for text in value:
            key, separator, content = (part.strip() for part in text.partition("="))
            if not (key and separator):
                raise ConfigError(f"{name} is malformed", expected=self.metavar, found=text)
            if key in pairs:
                raise ConfigError(f"{name}: {key} is given twice")
            pairs[key] = content
        return pairs


class LocalFolderKind(PathKind):
    """A local folder for logs on which a broker starts."""

    def __init__(self) -> None:
        super().__init__("DIR")

    def convert(self, value: Any, name: str, now: int) -> str:
        path = super().convert(value, name, now)
        refuse_remote(
            path,
            f"{name} is in an object store, but a broker needs a local file system",
            hint="write to a local folder",
        )
        return path


_INDEX_INTERVAL = (
    IntegerKind(0, INT32_MAX),
    "Minimum number of log bytes between two index entries. Overrides --config.  [default: 4096]",
)


def config_parameter(**overrides: tuple[Kind, str]) -> Any:
    """Return the parameter for Kafka settings of logs; `overrides` as in `SettingsKind`."""
    return parameter(
        SettingsKind(index_interval_bytes=_INDEX_INTERVAL, **overrides),
        Group.SETTINGS,
        "Kafka settings, such as a broker's server.properties. topic.NAME.index.interval.bytes "
        "overrides the setting of a topic.",
        default=DEFAULT_SETTINGS,
    )


def to_properties(
    mapping: object, name: str, value_types: type | tuple[type, ...] = (str, int, float)
) -> dict[str, str]:
    """Convert a mapping to the texts of a ``.properties`` file."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            f"{name} has the wrong type",
            expected="a mapping of names to values",
            found=argument_text(mapping),
        )
    properties = {}
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise ConfigError(f"{name} has a name that is not a string", found=argument_text(key))
        if not isinstance(value, value_types):
            raise ConfigError(
                f"{name} has a value of the wrong type for {key}",
                expected="a string" if value_types is str else "a string or a number",
                found=argument_text(value),
            )
        properties[key] = (str(value).lower() if isinstance(value, bool) else str(value)).strip()
    return properties


def follow_links_parameter() -> Any:
    """Return the parameter for reading links that point outside the input."""
    return parameter(
        FlagKind(),
        Group.STORAGE,
        "Also read index files, checkpoints and snapshots that are symbolic links to files "
        "outside the input. Links to directories and logs are always followed.",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest(Request):
    """A request that reads log directories."""

    inputs: tuple[str, ...] = parameter(
        PathsKind(),
        Group.INPUT,
        "Log directories. Takes several paths, and may be repeated.",
        "--input",
        default=(),
    )
    follow_links: bool = follow_links_parameter()

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ArgumentError("no input: give {inputs} PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest(InputRequest):
    """A request that reads logs, remote segments, or both."""

    tiered: TieredOptions | None = parameter(
        TieredKind(),
        Group.INPUT,
        "Folder of remote segments, written by LocalTieredStorage or Aiven's plugin. With "
        "--input, local and remote segments of a partition are merged. May be repeated.",
        "--tiered",
        default=None,
    )

    def __post_init__(self) -> None:
        if not (self.inputs or self.tiered):
            raise ArgumentError("no input: give {inputs} or {tiered}")

    @property
    def folders(self) -> list[str]:
        """The folders from which logs and indexes are read."""
        tiered = () if self.tiered is None else self.tiered.uris
        indexes = getattr(self, "indexes", None)
        return [*self.inputs, *tiered, *([indexes] if indexes else [])]


class ColumnsKind(NamesKind):
    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:
        from kafka_index.core.records.record_table import RECORD_SCHEMA  # noqa: PLC0415, slow to import
        from kafka_index.core.schema.columns import is_typed  # noqa: PLC0415, as above

        columns = NamesKind().convert(value, name, now)
        # Members of keys and values are checked later, when their schemas are known.
        record_columns = [column for column in columns if not is_typed(column)]
        if record_columns:
            NamesKind(RECORD_SCHEMA.names).convert(record_columns, name, now)
        return columns


class OffsetsKind(Kind):
    """Offsets by topic and partition: a mapping, or a file of them."""

    metavar = "FILE"

    def convert(self, value: Any, name: str, now: int) -> dict[str, dict[int, int]]:  # noqa: ARG002
        from kafka_index.core.arguments import convert_offsets  # noqa: PLC0415, slow to import

        return convert_offsets(value, name)


class KeysKind(Kind):
    """Record keys: a list, or a file with one key per line."""

    metavar = "FILE"

    def convert(self, value: Any, name: str, now: int) -> tuple[bytes, ...]:  # noqa: ARG002
        from kafka_index.core.arguments import convert_keys  # noqa: PLC0415, slow to import

        return convert_keys(value, name)


def indexes_parameter() -> Any:
    """Return the parameter for index files that are not next to the logs."""
    return parameter(
        PathKind(),
        Group.INPUT,
        "Folder of index files, written by `build --output`.  [default: next to the logs]",
        default=None,
    )


def topics_parameter() -> Any:
    return parameter(
        TopicsKind(), Group.SELECTION, "Only topics whose full name matches REGEX.", default=None
    )


def format_topics(topics: re.Pattern[str] | str | None) -> str:
    """Return the restriction to topics, for the headline of a result; empty for all topics."""
    pattern = topics.pattern if isinstance(topics, re.Pattern) else topics
    return "" if pattern is None else f" of the topics that match {pattern!r}"


def isolation_parameter() -> Any:
    return parameter(
        ChoiceKind(Isolation),
        Group.SELECTION,
        "read_committed drops the records of aborted and open transactions.",
        default=Isolation.READ_UNCOMMITTED,
    )


def max_decompressed_parameter() -> Any:
    """Return the parameter for the memory limit of decompressed records."""
    return parameter(
        IntegerKind(1),
        Group.ENGINE,
        "Memory limit for decompressed records, in bytes, per process. Larger batches fail with "
        "too_large.",
        default=DEFAULT_MAX_DECOMPRESSED_BYTES,
    )


def schemas_parameter() -> Any:
    """Return the parameter for the source of schemas, see `open_schemas`."""
    return parameter(
        PathKind("dump|PATH"),
        Group.DECODING,
        "Source of the schemas: dump (the topic _schemas in the input), dump:TOPIC, a folder or "
        "file of schemas, or the URL of a schema registry.",
        default="dump",
    )


def schema_context_parameter() -> Any:
    """Return the parameter for the context of schema IDs."""
    return parameter(
        TextKind("NAME"),
        Group.DECODING,
        "Context of the schema IDs in the records, such as .staging.",
        default=".",
    )


def from_parameter() -> Any:
    """Return the parameter ``from_time``, the start of a range for `time_range_ms`."""
    return parameter(
        TimeKind(),
        Group.SELECTION,
        f"Only records with a timestamp at or after TIME. {TIME_HELP}",
        "--from",
        default=None,
    )


def to_parameter() -> Any:
    """Return the parameter ``to_time``, the end of a range for `time_range_ms`."""
    return parameter(
        TimeKind(),
        Group.SELECTION,
        "Only records with a timestamp before TIME.",
        "--to",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest(LogRequest):
    indexes: str | None = indexes_parameter()
    topics: Any = topics_parameter()
    max_decompressed_bytes: int = max_decompressed_parameter()


def decode_errors_parameter(
    help: str = "Keep the bytes of fields that cannot be decoded in a separate column, or fail at "  # noqa: A002
    "the first error.",
    default: DecodeErrors = DecodeErrors.KEEP,
) -> Any:
    """Return the parameter ``decode_errors``."""
    return parameter(ChoiceKind(DecodeErrors), Group.DECODING, help, default=default)


@dataclass(frozen=True, kw_only=True)
class DecodeFields(Request):
    """The fields of requests that can decode records with their schemas.

    It has no slots, so that it can be combined with another base class.
    """

    decode: Decode | None = parameter(
        ChoiceKind(Decode),
        Group.DECODING,
        "Decode keys, values or both with their schemas.",
        default=None,
    )
    schemas: str = schemas_parameter()
    value_schema: str | None = parameter(
        TextKind("FILE[#TYPE]"),
        Group.DECODING,
        "Schema of values without a schema ID: .avsc, .proto or .json. TYPE is a message in a "
        ".proto.",
        default=None,
    )
    decode_errors: DecodeErrors = decode_errors_parameter()
    schema_context: str = schema_context_parameter()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode is None:
            for name, field_parameter in parameters(type(self)).items():
                if (
                    field_parameter.group is Group.DECODING
                    and getattr(self, name) != field_parameter.default
                ):
                    raise ArgumentError(f"{{{name}}} requires {{decode}}")
            self._refuse_typed_columns()
        elif self.value_schema is not None and self.decode is Decode.KEY:
            raise ArgumentError("{value_schema} requires {decode} value or both")

    def _refuse_typed_columns(self) -> None:
        if columns := getattr(self, "columns", None):
            from kafka_index.core.schema.columns import is_typed  # noqa: PLC0415, rarely needed

            for name in filter(is_typed, columns):
                raise ArgumentError(f"{{columns}}: {name} requires {{decode}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest(DecodeFields, RecordRequest):
    """A request that reads the records of logs, and can decode them with their schemas."""


def time_range_ms(
    from_time: Moment | None, to_time: Moment | None
) -> tuple[int | None, int | None]:
    """Return the start and the exclusive end of a time range in ms; reject an empty range.

    The arguments are the request fields with these names. A record without a timestamp has -1, and
    is never in a range.
    """
    if from_time is not None and to_time is not None and from_time >= to_time:
        raise ArgumentError(
            f"the time range is empty: {{from_time}} is {time_text(from_time)}, and {{to_time}} "
            f"(exclusive) is {time_text(to_time)}"
        )
    if from_time is None and to_time is None:
        return None, None
    return max(from_time or 0, 0), to_time
