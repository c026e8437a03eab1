"""Settings with Kafka's property names.

Precedence is always: explicit option, settings file, Kafka's default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TypeVar

from kafka_index.core.errors import ConfigError, argument_text, refuse_other_types
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC
from kafka_index.core.format.strings import load_properties
from kafka_index.core.format.uri_passwords import path_of

INDEX_INTERVAL_BYTES = "log.index.interval.bytes"
INDEX_SIZE_MAX_BYTES = "log.index.size.max.bytes"
PRODUCER_ID_EXPIRATION_MS = "producer.id.expiration.ms"
#: Not a setting of Kafka, but accepted in a settings file.
MAX_DECOMPRESSED_BYTES = "max.decompressed.bytes"
DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024

# Names of the corresponding topic settings (TopicConfig).
_TOPIC_NAMES = {
    "index.interval.bytes": "index_interval_bytes",
    "segment.index.bytes": "index_size_max_bytes",
}
_BROKER_NAMES = {
    INDEX_INTERVAL_BYTES: "index_interval_bytes",
    INDEX_SIZE_MAX_BYTES: "index_size_max_bytes",
}
_Choice = TypeVar("_Choice", bound=Enum)

_BROKER_NAME_BY_FIELD = {name: each for each, name in _BROKER_NAMES.items()}
_INTERVAL, _EXPIRATION = "index_interval_bytes", "producer_id_expiration_ms"
_DAY_MS = 24 * 60 * 60 * 1000
_MINIMUM = {"index_interval_bytes": 0, "index_size_max_bytes": 4}
_TOPIC_PREFIX = "topic."
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64 = range(-(1 << 63), 1 << 63)
_MAX_DIGITS = 19
_TOPIC_PROPERTY = re.compile(
    r"topic\.(?P<topic>.+)\.(?P<name>" + "|".join(map(re.escape, _TOPIC_NAMES)) + ")"
)


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """The settings that determine the bytes of a segment's index files.

    Parameters
    ----------
    index_interval_bytes : int
        ``log.index.interval.bytes``: bytes of log between two entries, 0 or more.
    index_size_max_bytes : int
        ``log.index.size.max.bytes``: maximum size of an index file in bytes, 4 or more.
    """

    index_interval_bytes: int = 4096
    index_size_max_bytes: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUM.items():
            value = getattr(self, name)
            refuse_other_types(**{name: (value, Integral)})
            if not minimum <= value <= INT32_MAX:
                raise ConfigError(
                    f"{name.replace('_', '.')} is out of range",
                    expected=f"{minimum}..{INT32_MAX}",
                    found=value,
                )


_DEFAULTS = {name: getattr(IndexConfig(), name) for name in _TOPIC_NAMES.values()}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of all topics: a default, and overrides per topic.

    Parameters
    ----------
    default : IndexConfig
        For topics without overrides.
    topics : mapping of str to IndexConfig
        Overrides by topic name.
    producer_id_expiration_ms : int
        ``producer.id.expiration.ms``: how long a broker keeps an idle producer, in ms.
    max_decompressed_bytes : int
        ``max.decompressed.bytes``: memory limit for decompressed records of a process, 1 or more.
    given : sequence of topic and field, optional
        Settings of the user, which take precedence over a cluster's settings; "" for all topics. By
        default the overrides, and values that differ from Kafka's defaults.
    """

    default: IndexConfig = IndexConfig()
    topics: Mapping[str, IndexConfig] = field(default_factory=dict)
    producer_id_expiration_ms: int = _DAY_MS
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    given: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        """Reject wrong types and values out of range."""
        refuse_other_types(
            default=(self.default, IndexConfig),
            topics=(self.topics, Mapping),
            producer_id_expiration_ms=(self.producer_id_expiration_ms, Integral),
            max_decompressed_bytes=(self.max_decompressed_bytes, Integral),
        )
        for topic, config in self.topics.items():
            refuse_other_types(**{f"topics: {topic!r}": (config, IndexConfig)})
        refuse_other_types(given=(self.given, tuple | None))
        for pair in self.given or ():
            refuse_other_types(**{"given: a pair": (pair, tuple)})
        if self.given is None:
            fields = _TOPIC_NAMES.values()
            is_given = {name: getattr(self.default, name) != _DEFAULTS[name] for name in fields}
            user_settings = [
                *(("", name) for name in fields if is_given[name]),
                *((topic, name) for topic in self.topics for name in fields),
            ]
            if self.producer_id_expiration_ms != _DAY_MS:
                user_settings.append(("", _EXPIRATION))
            object.__setattr__(self, "given", tuple(sorted(user_settings)))
        if not 1 <= self.producer_id_expiration_ms <= INT32_MAX:
            raise ConfigError(
                f"{PRODUCER_ID_EXPIRATION_MS} is out of range",
                expected=f"1..{INT32_MAX}",
                found=self.producer_id_expiration_ms,
            )
        if self.max_decompressed_bytes < 1:
            raise ConfigError(
                f"{MAX_DECOMPRESSED_BYTES} is out of range",
                expected="1 or more",
                found=self.max_decompressed_bytes,
            )

    def for_topic(self, topic: str) -> IndexConfig:
        """Return the settings of one topic."""
        return self.topics.get(topic, self.default)

    def with_cluster(
        self, topics: Mapping[str, Mapping[str, str]], broker: Mapping[str, str]
    ) -> LogConfig:
        """Use a cluster's settings for settings that the user has not set.

        Precedence: option, settings file, topic setting in the metadata log, dynamic broker setting
        in the metadata log, Kafka's default. Names are Kafka's; invalid values are ignored.
        """
        user_settings = set(self.given or ())

        def complete_config(topic: str, configs: Mapping[str, str]) -> IndexConfig:
            values = {}
            for name, field_name in _TOPIC_NAMES.items():
                if ("", field_name) in user_settings or (topic, field_name) in user_settings:
                    continue
                texts = broker.get(_BROKER_NAME_BY_FIELD[field_name], ""), configs.get(name, "")
                for value in map(parse_integer, map(str.strip, texts)):
                    if value is not None and _MINIMUM[field_name] <= value <= INT32_MAX:
                        values[field_name] = value
            return replace(self.for_topic(topic), **values)

        expiration_ms = parse_integer(broker.get(PRODUCER_ID_EXPIRATION_MS, "").strip())
        is_given = ("", _EXPIRATION) in user_settings
        if is_given or expiration_ms is None or not 1 <= expiration_ms <= INT32_MAX:
            expiration_ms = self.producer_id_expiration_ms
        default = complete_config("", {})
        config_by_topic = {
            topic_name: complete_config(topic_name, topics.get(topic_name, {}))
            for topic_name in {*self.topics, *topics}
        }
        # KafkaRaftLog ignores settings of topics and brokers.
        config_by_topic[CLUSTER_METADATA_TOPIC] = self.for_topic(CLUSTER_METADATA_TOPIC)
        topic_overrides = {
            topic_name: config_by_topic[topic_name]
            for topic_name in sorted(config_by_topic)
            if config_by_topic[topic_name] != default
        }
        return replace(
            self, default=default, topics=topic_overrides, producer_id_expiration_ms=expiration_ms
        )

    def is_given(self, topic: str) -> bool:
        """Return whether the user set the index interval of a topic."""
        user_settings = self.given or ()
        return ("", _INTERVAL) in user_settings or (topic, _INTERVAL) in user_settings

    @classmethod
    def load(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        index_interval_bytes: int | None = None,
        index_size_max_bytes: int | None = None,
        max_decompressed_bytes: int | None = None,
    ) -> LogConfig:
        """Combine options, a ``.properties`` file and Kafka's defaults.

        Parameters
        ----------
        path : path, optional
            For example a broker's ``server.properties``. Only these settings are used: the settings
            of `IndexConfig`, ``topic.NAME.index.interval.bytes``,
            ``topic.NAME.segment.index.bytes``, ``producer.id.expiration.ms`` and
            ``max.decompressed.bytes``.
        index_interval_bytes, index_size_max_bytes : int, optional
            Options, which override the file for every topic.
        max_decompressed_bytes : int, optional
            Option, which overrides the file.

        Raises
        ------
        ConfigError
            The file cannot be read, a value is not an integer in range, or a name that starts
            with ``topic.`` is unknown.
        """
        if path is not None:
            path = path_of(path, "path")
        return cls.of_properties(
            {} if path is None else read_properties(path),
            path=path,
            index_interval_bytes=index_interval_bytes,
            index_size_max_bytes=index_size_max_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
        )

    @classmethod
    def of_properties(
        cls,
        properties: Mapping[str, str],
        *,
        path: str | PathLike[str] | None = None,
        index_interval_bytes: int | None = None,
        index_size_max_bytes: int | None = None,
        max_decompressed_bytes: int | None = None,
    ) -> LogConfig:
        """Combine options, properties with Kafka's names, and Kafka's defaults.

        Parameters
        ----------
        properties : mapping of str to str
            The content of a ``.properties`` file; unknown names are ignored as in `load`.
        path : path, optional
            The file, for errors.
        index_interval_bytes, index_size_max_bytes, max_decompressed_bytes : int, optional
            Options, as in `load`.

        Raises
        ------
        ConfigError
            A value or a name is invalid, as in `load`.
        """
        options = {
            name: value
            for name, value in (
                ("index_interval_bytes", index_interval_bytes),
                ("index_size_max_bytes", index_size_max_bytes),
            )
            if value is not None
        }
        broker: dict[str, int] = {}
        expiration_ms = _DAY_MS
        decompressed_bytes = DEFAULT_MAX_DECOMPRESSED_BYTES
        topics: dict[str, dict[str, int]] = {}
        for name, text in properties.items():
            match = _TOPIC_PROPERTY.fullmatch(name)
            if name in _BROKER_NAMES:
                broker[_BROKER_NAMES[name]] = _parse_setting(name, text, path)
            elif name == PRODUCER_ID_EXPIRATION_MS:
                expiration_ms = _parse_setting(name, text, path)
            elif name == MAX_DECOMPRESSED_BYTES:
                decompressed_bytes = _parse_setting(name, text, path)
            elif match is not None:
                settings = topics.setdefault(match["topic"], {})
                settings[_TOPIC_NAMES[match["name"]]] = _parse_setting(name, text, path)
            elif name.startswith(_TOPIC_PREFIX):
                # Brokers have no settings of this form, so the setting is for kafka-index.
                raise ConfigError(
                    f"{name} is not a topic setting",
                    path=path,
                    expected=f"{_TOPIC_PREFIX}NAME. and one of {', '.join(_TOPIC_NAMES)}",
                )
        default = replace(IndexConfig(), **(broker | options))
        user_settings = [("", field_name) for field_name in (*broker, *options)]
        user_settings += [
            (topic, field_name)
            for topic, topic_values in topics.items()
            for field_name in topic_values
        ]
        if PRODUCER_ID_EXPIRATION_MS in properties:
            user_settings.append(("", _EXPIRATION))
        return cls(
            default,
            {
                topic: replace(default, **(topic_values | options))
                for topic, topic_values in topics.items()
            },
            expiration_ms,
            decompressed_bytes if max_decompressed_bytes is None else max_decompressed_bytes,
            tuple(sorted(set(user_settings))),
        )


def to_choice(enumeration: type[_Choice], value: object, name: str) -> _Choice:
    """Convert an enumeration member or its value.

    Raises `ConfigError` with the parameter's name for any other value.
    """
    if isinstance(value, enumeration):
        return value
    choices = {str(member.value): member for member in enumeration}
    if isinstance(value, str) and not isinstance(value, Enum) and value in choices:
        return choices[value]
    raise ConfigError(
        f"{name} is not one of the choices",
        expected=", ".join(choices),
        found=argument_text(value),
    )


def to_list_members(value: object) -> list[object] | None:
    """Return the members of a list, a tuple, a set, or a column of any library.

    Returns None for other values, such as a string, a mapping, or a table (whose members would be
    column names).
    """
    scalar_types = (str, bytes, bytearray, Mapping)
    if (
        isinstance(value, scalar_types)
        or hasattr(value, "columns")
        or not isinstance(value, Iterable)
    ):
        return None
    try:
        return list(value)
    except TypeError:  # Raised by an array without dimensions.
        return None


def compile_topics(topics: object, name: str = "topics") -> re.Pattern[str] | None:
    """Return a pattern for the full names of topics, None for all topics.

    `topics` is a regular expression, compiled or not, or a list of names. Raises `ConfigError` for
    anything else.
    """
    if topics is None:
        return None
    if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
        return topics
    reason = "the value is not a string"
    members = to_list_members(topics)
    if isinstance(topics, str):
        try:
            return re.compile(topics)
        except re.error as error:
            reason = str(error)
    elif members is not None:
        names = [name for name in members if isinstance(name, str)]
        if names and len(names) == len(members):
            return re.compile("|".join(map(re.escape, names)))
        reason = "the value is not a list of names"
    raise ConfigError(
        f"{name} is not a regular expression: {reason}",
        expected="a regular expression, or a list of at least one name",
        found=argument_text(topics),
    )


def read_properties(path: str | PathLike[str]) -> dict[str, str]:
    """Read a ``.properties`` file like Java; raises `ConfigError` if it cannot be read."""
    try:
        properties = load_properties(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read the settings file: {reason}", path=path) from error
    return {name: entry.value.strip() for name, entry in properties.items()}


def parse_integer(text: str) -> int | None:
    """Parse a 64-bit integer, None if the text is not one.

    Only an optional sign and ASCII digits: Python would also accept ``1_000`` and digits of other
    scripts.
    """
    if _INTEGER.fullmatch(text) is None or len(text.lstrip("+-").lstrip("0")) > _MAX_DIGITS:
        return None
    value = int(text)
    return value if value in _INT64 else None


def _parse_setting(name: str, text: str, path: str | PathLike[str] | None) -> int:
    value = parse_integer(text)
    if value is None:
        raise ConfigError(
            f"{name} is not an integer", path=path, expected="an integer", found=repr(text)
        )
    return value
