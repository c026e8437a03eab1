"""The options of the data source ``kafka-log``: those of Spark's Kafka source, and a few more.

Names and meaning are those of Spark's ``KafkaSourceProvider`` and ``KafkaOffsetReader``, so that a
job is moved by changing the format. An option that changes rows and that log directories cannot
honour is refused by name; one about connections or tuning is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import InputError
from kafka_index.records.record_table import DEFAULT_COLUMNS
from kafka_index.tables import Isolation, OnDamage, ReadSettings
from kafka_index.tables.bounds import EARLIEST, LATEST, BoundOptions, Offsets, Timestamps

_MODES = {
    "FAILFAST": OnDamage.FAILFAST,
    "PERMISSIVE": OnDamage.PERMISSIVE,
    "DROPMALFORMED": OnDamage.DROP,
}
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_KNOWN = frozenset(
    name.lower()
    for name in (
        "path",
        "indexes",
        *_SUBSCRIPTIONS,
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "includeHeaders",
        "minPartitions",
        "kafka.isolation.level",
        "columns",
        "includeControlRecords",
        "rows",
        "mode",
        "maxDecompressedBytes",
    )
)
#: Options of Spark's Kafka source that change no rows of a batch read.
_IGNORED = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix",
        "kafka.group.id",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "maxRecordsPerPartition",
        "includeTimestamp",
    )
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a read of ``kafka-log`` asks for.

    Parameters
    ----------
    path : str
        Data directories or topic-partition directories, separated by commas.
    indexes : str, optional
        Folder of index files.
    topics : str, optional
        The pattern of topics.
    partitions : mapping of str to list of int, optional
        The partitions of topics.
    bounds : BoundOptions
        Where to begin and end.
    settings : ReadSettings
        How to read.
    fail_on_data_loss : bool
        Whether a starting offset that the log no longer has is an error.
    min_partitions : int
        At least so many tasks, where the logs allow it.
    ignored : tuple of str
        Options that have no effect.
    """

    path: str
    indexes: str | None = None
    topics: str | None = None
    partitions: Mapping[str, list[int]] | None = None
    bounds: BoundOptions = field(default_factory=BoundOptions)
    settings: ReadSettings = field(default_factory=ReadSettings)
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    ignored: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The paths."""
        return [path.strip() for path in self.path.split(",")]


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read.

    Parameters
    ----------
    given : mapping of str to str
        As Spark has them; names in any case.

    Raises
    ------
    InputError
        An option is malformed, contradicts another, or cannot be honoured.
    """
    options = {name.lower(): value for name, value in given.items()}
    ignored = _check_names(options)
    if "path" not in options:
        raise InputError("the option path is missing", hint="name a data directory")
    topics, partitions = _subscription(options)
    return SourceOptions(
        path=options["path"],
        indexes=options.get("indexes"),
        topics=topics,
        partitions=partitions,
        bounds=_bounds(options),
        settings=ReadSettings(
            columns=_columns(options),
            isolation=_choice(
                options, "kafka.isolation.level", {one.value: one for one in Isolation}
            ),
            include_control=_flag(options, "includecontrolrecords", default=False),
            on_damage=_choice(options, "mode", _MODES),
            max_decompressed_bytes=_number(
                options, "maxdecompressedbytes", DEFAULT_MAX_DECOMPRESSED_BYTES
            ),
        ),
        fail_on_data_loss=_flag(options, "failondataloss", default=True),
        min_partitions=_number(options, "minpartitions", 1),
        ignored=tuple(ignored),
    )


def _check_names(options: Mapping[str, str]) -> list[str]:
    """Return the options without effect; refuse those that there are not."""
    ignored = []
    for name in options:
        if name in _KNOWN:
            continue
        if name in _IGNORED or name.startswith("kafka."):
            ignored.append(name)
            continue
        raise InputError("kafka-log has no such option", found=name, hint="see docs/records.md")
    if options.get("rows", "records").lower() != "records":
        raise InputError("not a form of rows", expected="records", found=options["rows"])
    return sorted(ignored)


def _subscription(
    options: Mapping[str, str],
) -> tuple[str | None, Mapping[str, list[int]] | None]:
    named = [name for name in _SUBSCRIPTIONS if name.lower() in options]
    if len(named) > 1:
        raise InputError(f"give one of {', '.join(_SUBSCRIPTIONS)}", found=", ".join(named))
    if "subscribe" in options:
        names = [name.strip() for name in options["subscribe"].split(",")]
        return "|".join(map(re.escape, names)), None
    if "assign" in options:
        return None, _json(options, "assign")
    return options.get("subscribepattern"), None


def _bounds(options: Mapping[str, str]) -> BoundOptions:
    """Return the bounds; a time for all wins over times by partition, and these over offsets."""
    start_time = _timestamps(options, "startingtimestamp", "startingoffsetsbytimestamp")
    end_time = _timestamps(options, "endingtimestamp", "endingoffsetsbytimestamp")
    start = None if start_time is not None else _offsets(options, "startingoffsets", "earliest")
    end = None if end_time is not None else _offsets(options, "endingoffsets", "latest")
    if start == LATEST:
        raise InputError("startingOffsets of a batch read cannot be latest")
    if end == EARLIEST:
        raise InputError("endingOffsets cannot be earliest")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InputError("not a strategy", expected="error or latest", found=strategy)
    return BoundOptions(start, end, start_time, end_time, needs_start=strategy == "error")


def _offsets(options: Mapping[str, str], name: str, default: str) -> Offsets:
    text = options.get(name, default).strip()
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    return special if special is not None else _by_partition(options, name)


def _timestamps(options: Mapping[str, str], for_all: str, by_partition: str) -> Timestamps | None:
    if for_all in options:
        return _number(options, for_all, 0)
    return _by_partition(options, by_partition) if by_partition in options else None


def _by_partition(options: Mapping[str, str], name: str) -> dict[str, dict[int, int]]:
    try:
        return {
            topic: {int(partition): int(value) for partition, value in values.items()}
            for topic, values in _json(options, name).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _malformed(options, name, '{"topic": {"0": 123}}') from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" in options:
        return tuple(name.strip() for name in options["columns"].split(","))
    # As in Spark's Kafka source, headers are a column on request.
    with_headers = _flag(options, "includeheaders", default=False)
    return DEFAULT_COLUMNS if with_headers else DEFAULT_COLUMNS[:-1]


def _json(options: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(options[name])
    except ValueError as error:
        raise _malformed(options, name, "JSON") from error


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    try:
        number = int(options.get(name, default))
    except ValueError as error:
        raise _malformed(options, name, "a number") from error
    if number < 0:
        raise _malformed(options, name, "0 or more")
    return number


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise _malformed(options, name, "true or false")
    return text == "true"


def _choice(options: Mapping[str, str], name: str, choices: Mapping[str, Any]) -> Any:
    """Return the value of a choice, in any case; the first of them by default."""
    text = options.get(name, next(iter(choices)))
    for choice, value in choices.items():
        if choice.lower() == text.lower():
            return value
    raise _malformed(options, name, ", ".join(choices))


def _malformed(options: Mapping[str, str], name: str, expected: str) -> InputError:
    return InputError(f"the option {name} is malformed", expected=expected, found=options.get(name))
