"""The settings of a writable log, with Kafka's names (``LogConfig``)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from kafka_index.core.errors import ConfigError, check_field_types
from kafka_index.core.format.config import LogConfig, parse_integer, to_choice
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX

_BOOLEANS = {"true": True, "false": False}

# Size of a time index entry. A constant, because importing `records.TIME_ENTRY` would load numpy.
_TIME_ENTRY_BYTES = 12


class TimestampType(StrEnum):
    """Which timestamps a leader stores in batches (``message.timestamp.type``)."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings that determine the files of a log, with Kafka's defaults, in bytes and ms.

    Parameters
    ----------
    index_interval_bytes : int
        ``index.interval.bytes``
    segment_index_bytes : int
        ``segment.index.bytes``
    segment_bytes : int
        ``segment.bytes``. A broker requires at least 1 MiB.
    segment_ms, segment_jitter_ms : int
        ``segment.ms`` and ``segment.jitter.ms``
    max_message_bytes : int
        ``max.message.bytes``
    preallocate : bool
        ``preallocate``: allocate new log files at full size.
    message_timestamp_type : TimestampType
        ``message.timestamp.type``
    message_timestamp_before_max_ms, message_timestamp_after_max_ms : int
        ``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms``
    cleanup_policy : str
        ``cleanup.policy``: a compacted topic rejects records without a key, and rolls after
        `max_compaction_lag_ms` at the latest.
    max_compaction_lag_ms : int
        ``max.compaction.lag.ms``
    producer_id_expiration_ms : int
        ``producer.id.expiration.ms``, a broker setting.
    """

    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    segment_jitter_ms: int = 0
    max_message_bytes: int = 1024 * 1024 + 12
    preallocate: bool = False
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    cleanup_policy: str = "delete"
    max_compaction_lag_ms: int = INT64_MAX
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000

    def __post_init__(self) -> None:
        check_field_types(self)
        for name, (minimum, maximum) in _RANGES.items():
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise ConfigError(
                    f"{name.replace('_', '.')} is out of range",
                    expected=f"{minimum}..{maximum}",
                    found=value,
                )
        timestamp_type = to_choice(
            TimestampType, self.message_timestamp_type, "message.timestamp.type"
        )
        object.__setattr__(self, "message_timestamp_type", timestamp_type)
        policies = str(self.cleanup_policy).replace(" ", "").split(",")
        if not set(policies) <= {"delete", "compact"}:
            raise ConfigError(
                "cleanup.policy is invalid",
                expected="delete, compact or delete,compact",
                found=self.cleanup_policy,
            )

    @classmethod
    def of_properties(
        cls, properties: Mapping[str, str], other_settings: Collection[str] = ()
    ) -> Self:
        """Create the settings from the properties of a topic.

        Parameters
        ----------
        properties : mapping of str to str
            Kafka's names and values, as returned by
            `kafka_index.core.format.config.read_properties`.
        other_settings : collection of str
            Names of other settings that the caller accepts. The error for an unknown name lists
            these names too.

        Raises
        ------
        ConfigError
            The name of a property is unknown, or its value is invalid.
        """
        names = {field.name.replace("_", "."): field for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in properties.items():
            field = names.get(name)
            if field is None:
                raise _unknown_setting(name, [*other_settings, *names])
            values[field.name] = _parse_value(name, text, str(field.type))
        return cls(**values)  # type: ignore[arg-type]  # parsed by the types of the fields

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted."""
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Maximum age of the active segment in ms (``LogConfig.maxSegmentMs``)."""
        if self.is_compacted:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms


#: Minimum and maximum values of settings (``LogConfig``). As with Kafka's
#: ``internal.segment.bytes``, tests use smaller segments than a broker allows. An index file must
#: have space for one entry.
_RANGES = {
    "index_interval_bytes": (0, INT32_MAX),
    "segment_index_bytes": (_TIME_ENTRY_BYTES, INT32_MAX),
    "segment_bytes": (14, INT32_MAX),
    "segment_ms": (1, INT64_MAX),
    "segment_jitter_ms": (0, INT64_MAX),
    "max_message_bytes": (0, INT32_MAX),
    "message_timestamp_before_max_ms": (0, INT64_MAX),
    "message_timestamp_after_max_ms": (0, INT64_MAX),
    "max_compaction_lag_ms": (1, INT64_MAX),
    "producer_id_expiration_ms": (1, INT32_MAX),
}


def _unknown_setting(name: str, names: Collection[str]) -> ConfigError:
    similar = difflib.get_close_matches(name, names, n=1)
    return ConfigError(
        f"{name} is not a supported topic setting",
        expected=f"one of {', '.join(names)}",
        hint=f"did you mean {similar[0]}?" if similar else None,
    )


def _parse_value(name: str, text: str, kind: str) -> object:
    try:
        if kind == "bool":
            return _BOOLEANS[text.lower()]
        if kind == "TimestampType":
            return TimestampType(text)
    except (ValueError, KeyError):
        raise _invalid_value(name, text, kind) from None
    if kind != "int":
        return text
    value = parse_integer(text.strip())
    if value is None:
        raise _invalid_value(name, text, kind)
    return value


def _invalid_value(name: str, text: str, kind: str) -> ConfigError:
    return ConfigError(f"{name} has an invalid value", expected=kind, found=repr(text))


def log_settings_of(config: LogConfig, topic: str) -> LogSettings:
    """Return the settings that affect how a topic's logs are loaded, and its index files built."""
    index = config.for_topic(topic)
    return LogSettings(
        index_interval_bytes=index.index_interval_bytes,
        segment_index_bytes=index.index_size_max_bytes,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
