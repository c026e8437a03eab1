"""Choices: members and their values, and what is none of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafka_index
from kafka_index import (
    BatchFields,
    KafkaIndexError,
    LogSegment,
    LogSettings,
    PartitionLog,
    PartitionLogWriter,
    Record,
    Resolve,
    UpperBound,
    write_record_batch,
)
from kafka_index.commands.build.request import InputFormat
from kafka_index.commands.export.request import ExportFormat, History, OnDataLoss
from kafka_index.commands.restore.request import ClusterMode, Link, RestoreRequest, Salvage
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.log.append.incoming_batches import AppendOrigin
from kafka_index.core.log.append.incoming_batches import Isolation as FetchIsolation
from kafka_index.core.log.append.settings import TimestampType
from kafka_index.core.log.choices import BuildOutput, Isolation, OnDamage
from tests.support.command_line import DUMP

PARTITION = DUMP / "payments-0"
LOG = PARTITION / "00000000000000000000.log"
OFFSETS = np.array([5], np.int64)
BATCH = write_record_batch([Record(1_714_521_600_000, b"k", b"v")], 0)


def _partition(name: str, **options: Any) -> Any:
    with PartitionLog.open(PARTITION) as log:
        return getattr(log, name)(OFFSETS, **options)


def _segment(name: str, **options: Any) -> Any:
    with LogSegment.open(LOG) as segment:
        return getattr(segment, name)(OFFSETS, **options)


def _growing(folder: Path, name: str, **options: Any) -> Any:
    with PartitionLogWriter(folder) as log:
        if name == "append":
            return log.append_as_leader(BATCH, 0, **options)
        log.append_as_leader(BATCH, 0)
        return bytes(log.read(0, 1000, **options).records)


Call = Callable[..., Any]
#: Methods with a choice, and a call with the choice and a folder of its own; those of functions and
#: of what opens a log are in `tests.test_arguments`.
PLACES: dict[str, tuple[type[Enum], Call]] = {
    **{
        f"{kind}.{name}": (
            Resolve,
            lambda _, name=name, call=call, **given: call(name, resolve=given["choice"]),
        )
        for kind, call in (("PartitionLog", _partition), ("LogSegment", _segment))
        for name in ("lookup_offsets", "lookup_timestamps")
    },
    "PartitionLogWriter.append_as_leader": (
        AppendOrigin,
        lambda folder, **given: _growing(folder / "t-0", "append", origin=given["choice"]),
    ),
    "PartitionLogWriter.read": (
        FetchIsolation,
        lambda folder, **given: _growing(folder / "t-0", "read", isolation=given["choice"]),
    ),
    "RestoreRequest cluster": (
        ClusterMode,
        lambda _, **given: RestoreRequest.build(
            {"inputs": "dump", "output": "out", "cluster": given["choice"]}
        ),
    ),
}
KINDS = (
    *(AppendOrigin, ClusterMode, ExportFormat, FetchIsolation, History, InputFormat),
    *(
        Isolation,
        Link,
        OnDamage,
        OnDataLoss,
        BuildOutput,
        Resolve,
        Salvage,
        TimestampType,
        UpperBound,
    ),
)


class Other(Enum):
    """An enum of somebody else, with values of ours."""

    RECORD = "record"
    LOG_END = "log-end"
    PREFIX = "prefix"


def _result(call: Call, folder: Path, choice: object) -> object:
    """Return what a call returns, or why it fails: not every choice can be had of every log."""
    try:
        return call(folder, choice=choice)
    except KafkaIndexError as error:
        return str(error).replace(str(folder), "")


@pytest.mark.parametrize("place", PLACES)
def test_choice_is_a_member_or_its_value(place: str, tmp_path: Path) -> None:
    kind, call = PLACES[place]
    for number, member in enumerate(kind):
        result = []
        for name, choice in (("member", member), ("value", member.value)):
            folder = tmp_path / f"{number}-{name}"
            folder.mkdir()
            result.append(_result(call, folder, choice))
        assert result[0] == result[1]
        assert "not one of the choices" not in str(result[0])


@pytest.mark.parametrize("wrong", ["nonsense", "", None, 1, True, b"record", Other.RECORD, ["x"]])
@pytest.mark.parametrize("place", PLACES)
def test_invalid_choice_is_rejected_with_the_valid_ones(
    place: str, wrong: object, tmp_path: Path
) -> None:
    kind, call = PLACES[place]
    with pytest.raises(KafkaIndexError, match="not one of the choices") as error:
        call(tmp_path, choice=wrong)
    assert ", ".join(str(member.value) for member in kind) in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_choice_prints_as_its_value(kind: type[Enum]) -> None:
    assert issubclass(kind, StrEnum)
    assert [str(member) for member in kind] == [member.value for member in kind]


@pytest.mark.parametrize("wrong", ["nonsense", "", 1, b"zstd", ["zstd"]])
def test_invalid_name_of_an_option_without_an_enum_is_rejected(wrong: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "metadata": lambda: kafka_index.read_metadata(DUMP, wrong),
        "compression": lambda: write_record_batch([], 0, BatchFields(compression=wrong)),
        "cleanup.policy": lambda: LogSettings(cleanup_policy=wrong),
        "layout": lambda: TieredOptions(("x",), layout=wrong),
    }
    for call in calls.values():
        with pytest.raises(KafkaIndexError):
            call()
