"""The export record: the exported offsets of a partition, in a hidden file beside the data.

It is written before the first data file and after each that extends the range. A data file above
the recorded end was left by a killed run: the next run removes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from kafka_index.errors import InputError
from kafka_index.export.log_history import ExportedBatch
from kafka_index.export.settings import ExportSettings
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import format_time
from kafka_index.reading import PartitionFiles
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.registry import whole_file
from kafka_index.tables.settings import RecordFilter

EXPORT_RECORD = ".kafka-index-export.json"
_VERSION = 1
_TIMES = ("from_ms", "to_ms")


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets, the end exclusive, of which some records were left out because of damage.

    `records` counts those in place; None if an earlier version has not counted them.
    """

    first_offset: int
    end_offset: int
    records: int | None = None


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """The export of a partition so far.

    The options decide the rows: `record_options`. The offsets from the first to the next,
    exclusive, have been exported; the log directory may have the topic id. A later run reads the
    damaged ranges again. `batches` are the last ones of splits, which the log has to have to be
    continued. `superseded` are data files that go, below the folder; then those beside them are
    taking their place.
    """

    options: Mapping[str, object]
    first_offset: int
    next_offset: int
    topic_id: str | None = None
    damaged: tuple[DamagedRange, ...] = ()
    batches: tuple[ExportedBatch, ...] = ()
    superseded: tuple[str, ...] | None = None

    def write(self, folder: str) -> None:
        """Write the record into the folder of the partition, whole.

        Raises `PublishError` if that fails.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)
        with whole_file(os.path.join(folder, EXPORT_RECORD), what="export record") as file:
            file.write(f"{text}\n".encode())
            file.commit()


def record_options(settings: ExportSettings) -> dict[str, object]:
    """Return the options that decide the rows and files of an export, as in JSON."""
    return {
        "format": settings.format.value,
        "columns": list(settings.file_columns),
        "by_date": settings.by_date,
        "isolation": settings.read.isolation.value,
        "from_ms": settings.from_ms,
        "to_ms": settings.to_ms,
        # Left out where there are none, as earlier versions do.
        **({"relative_times": dict(settings.relative_times)} if settings.relative_times else {}),
    }


#: The options by their names in a record.
OPTION_NAMES: Final = {
    "format": "--format",
    "columns": "--columns",
    "by_date": "--by-date",
    "isolation": "--isolation",
    "from_ms": "--from",
    "to_ms": "--to",
    "relative_times": "--from and --to",
}


def value_text(name: str, value: object) -> str:
    """Return the value of an option in a record, a time as ISO 8601."""
    if value in (None, False):
        return "none"
    if name in _TIMES and isinstance(value, int):
        return format_time(value) or f"{value} ms"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def option_again(options: Mapping[str, object], name: str) -> str:
    """Return what to do to continue an export, where an option of its record differs."""
    option, value, relative = OPTION_NAMES[name], options.get(name), options.get("relative_times")
    if isinstance(relative, dict) and name in relative:
        return f"give {option} {relative[name]}"
    if isinstance(value, bool) or value is None:
        return f"{'give' if value else 'leave out'} {option}"
    return f"give {option} {value_text(name, value)}"


def with_first_times(
    settings: ExportSettings, partitions: Iterable[PartitionFiles]
) -> ExportSettings:
    """Return settings whose relative times are those of the first run of the same export.

    An export that is continued reads new records: with another end in each run, records would be
    passed over for good.
    """
    if not settings.relative_times:
        return settings
    for one in partitions:
        record = read_export_record(settings.folder_of(TopicPartition(one.topic, one.partition)))
        options = {} if record is None else record.options
        if options.get("relative_times") == settings.relative_times:
            kept = RecordFilter(_time(options, "from_ms"), _time(options, "to_ms"))
            return replace(settings, read=replace(settings.read, record_filter=kept))
    return settings


def _time(options: Mapping[str, object], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) else None


def read_export_record(folder: str) -> ExportRecord | None:
    """Return the record of a partition's folder, None if there is none.

    Raises `InputError` if it is malformed, or of a later version.
    """
    path = os.path.join(folder, EXPORT_RECORD)
    try:
        data = store_of(path).read(path) if is_remote(path) else _read_local(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        version = fields.pop("version")
        damaged = tuple(DamagedRange(**one) for one in fields.pop("damaged"))
        batches = tuple(ExportedBatch(**one) for one in fields.pop("batches", ()))
        superseded = fields.pop("superseded", None)
        names = None if superseded is None else tuple(superseded)
        record = ExportRecord(**fields, damaged=damaged, batches=batches, superseded=names)
    except (ValueError, TypeError, KeyError, AttributeError):
        version = None
    if version != _VERSION:
        raise InputError(
            "not an export record of this version",
            path=path,
            hint="choose another --output, or remove the partition's folder to export it again",
        )
    return record


def _read_local(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
