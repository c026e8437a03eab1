"""Every parameter of every public function with odd values: an error that names it, or a result.

The calls are made from the signatures, also those of settings and of what opens a log. A parameter
of a type that is not in `KINDS_OF`, or a function that is not in `VALID`, fails until it is added.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import kafka_index
from kafka_index import KafkaIndexError, Record
from kafka_index.core.fs.paths import open_repository
from tests.support.command_line import DUMP, copy_partitions

PARTITION = "payments-0"
LOG = f"{PARTITION}/00000000000000000000.log"
#: The longest message, for an odd value of any size.
MAX_MESSAGE = 1_000


class Other(Enum):
    """An enum of somebody else."""

    RECORD = "record"


@dataclass(frozen=True)
class Places:
    """A small dump, its records as files, and a folder for each call."""

    dump: Path
    lake: Path
    folder: Path


#: Arguments of a call that is right; parameters with a default are left out.
VALID: dict[str, Callable[[Places], dict[str, Any]]] = {
    # The other brokers of `brokers` never come.
    "backup_broker": lambda at: {"paths": DUMP, "output": at.folder / "out", "wait": "1s"},
    "build_indexes": lambda at: {"paths": at.dump, "output": at.folder / "out"},
    "build_segment_files": lambda at: {"log_path": at.dump / LOG, "target_directory": at.folder},
    "export_records": lambda at: {"paths": at.dump, "output": at.folder / "out"},
    "find_records": lambda at: {"paths": at.dump, "key": "key-27820"},
    "import_records": lambda at: {"paths": at.lake, "output": at.folder / "out"},
    "list_partitions": lambda at: {"paths": at.dump},
    "lookup_offsets": lambda at: {
        "paths": at.dump,
        "queries": [{"topic": "payments", "partition": 0, "offset": 5}],
    },
    "lookup_timestamps": lambda at: {
        "paths": at.dump,
        "queries": [{"topic": "payments", "partition": 0, "timestamp": 0}],
    },
    "open_backup": lambda at: {
        "uri": open_repository(str(at.folder / "repo")).create("cluster").root
    },
    "predict": lambda at: {"paths": at.dump},
    "read_metadata": lambda _: {"paths": DUMP},
    "read_records": lambda at: {"paths": at.dump},
    "read_schemas": lambda _: {"paths": DUMP.parent / "typed"},
    "read_stats": lambda at: {"paths": at.dump},
    "restore_dump": lambda at: {
        "paths": at.dump,
        "output": at.folder / "out",
        "new_topic_ids": True,
    },
    "rewrite_dump": lambda at: {
        "paths": at.dump,
        "output": at.folder / "out",
        "drop_keys": ["key-27820"],
    },
    "verify": lambda at: {"paths": at.dump},
    "write_record_batch": lambda _: {"records": [Record(0, b"k", b"v")]},
}
#: The arguments that a parameter excludes.
EXCLUDED = {"drop_where": "drop_keys", "dry_run": "output", "in_place": "output"}
#: The same of classes.
VALID |= {
    "BatchFields": lambda _: {},
    "IndexConfig": lambda _: {},
    "LogConfig": lambda _: {},
    "LogConfig.load": lambda _: {},
    "LogSegment.open": lambda at: {"path": at.dump / LOG},
    "LogSettings": lambda _: {},
    "PartitionLog.open": lambda at: {"path": at.dump / PARTITION},
    "TieredOptions": lambda _: {},
    "read_batches": lambda at: {"path": at.dump / LOG},
}
FUNCTIONS = sorted(
    name
    for name in dir(kafka_index)
    if not name.startswith("_") and inspect.isfunction(getattr(kafka_index, name))
)


def called(name: str) -> Callable[..., Any]:
    """The function of a name, or the class; the fields of a batch are checked as it is written."""
    if name == "BatchFields":
        return lambda **given: kafka_index.write_record_batch(
            [Record(0, b"k", b"v")], fields=kafka_index.BatchFields(**given)
        )
    result: Callable[..., Any] = attrgetter(name)(kafka_index)
    return result


def signature_of(name: str) -> inspect.Signature:
    return inspect.signature(attrgetter(name)(kafka_index))


#: Odd values, by what they are.
ODD: dict[str, Callable[[Path], list[Any]]] = {
    "nothing": lambda _: [None],
    "bool": lambda _: [True],
    "integer": lambda _: [0, 1, -7, 10**30, np.int32(3)],
    "float": lambda _: [1.5, float("nan"), np.float64(2)],
    "text": lambda at: ["", "nonsense", "nul\0", "[", str(at / "missing"), str(at), str(at / "a")],
    "path": lambda at: [at / "missing", at, at / "a"],
    "bytes": lambda _: [b"x", b"", bytearray(b"x")],
    "texts": lambda _: [["nonsense"], [""], ("a", "a"), {"nonsense"}, []],
    # Brokers but 1 itself would be waited for.
    "list": lambda _: [[None], [1], [[]], {1}, (b"x",), iter([5]), range(1, 2), np.arange(1, 2)],
    "dicts": lambda _: [[{}], [{"topic": 1}], [{1: 2}], [{"topic": "a"}, {}]],
    "frame": lambda _: [
        pd.DataFrame(),
        pd.DataFrame({"topic": ["a", 1]}),
        pl.DataFrame({"topic": ["a"], "partition": ["0"]}),
        pa.table({"topic": ["a"], "partition": [0], "status": [1]}),
        pa.record_batch({"offset": [None]}),
    ],
    "mapping": lambda _: [
        {},
        {1: 2},
        {None: {}},
        {"a": None},
        {"a": 5},
        {"a": "b"},
        {"payments": [None]},
        {"payments": "0"},
        {"payments": {"x": 5}},
        {"payments": {0: "soon"}},
        {"payments": {0: -9}},
        {"payments": {0: None}},
    ],
    "moment": lambda _: [datetime(2024, 5, 1), date(1, 1, 1), pd.NaT],  # noqa: DTZ001, because it is odd
    "pattern": lambda _: [re.compile("nonsense")],
    "object": lambda _: [object(), int, len, re.compile(b"x"), Other.RECORD, ..., 1j],
}
_CHOICE = {"text"}
_PATH = {"text", "path"}
_TIME = {"text", "integer", "moment"}
#: What a type takes. Whatever else is given has to be refused.
KINDS_OF: dict[str, set[str]] = {
    "None": {"nothing"},
    "bool": {"bool"},
    "int": {"integer"},
    "float": {"integer", "float"},
    "timedelta": set(),
    "str": {"text"},
    "bytes": {"bytes"},
    "str | PathLike[str]": _PATH,
    "PathLike[str]": _PATH,
    "Path": _PATH,
    "Paths": {*_PATH, "texts"},
    "Tiered": {*_PATH, "texts"},
    "Topics": {"text", "texts", "pattern"},
    "Config": {*_PATH, "mapping"},
    "Time": _TIME,
    "Times": {*_TIME, "mapping"},
    "Offsets": {"integer", "mapping"},
    "Table": {"dicts", "frame", "texts"},
    "Collection[str]": {"texts", "text"},
    "Sequence[str]": {"texts"},
    "Sequence[int]": {"texts", "list"},
    "Collection[str | bytes]": {"texts", "list"},
    "Iterable[Record]": {"texts"},
    "Mapping[str, int]": {"mapping"},
    "Mapping[str, str]": {"mapping"},
    "Mapping[str, object]": {"mapping"},
    "Mapping[str, Sequence[int]]": {"mapping"},
    "Mapping[str, Mapping[str, str]]": {"mapping"},
    "Mapping[str, Mapping[int, int]]": {"mapping"},
    "Mapping[str, IndexConfig]": {"mapping"},
    "tuple[str, ...]": {"texts"},
    "tuple[tuple[str, str], ...]": {"texts"},
    "TimestampType": _CHOICE,
    "IndexConfig": set(),
    "BatchFields": set(),
    **dict.fromkeys(
        (
            "ClusterMode",
            "Decode",
            "DecodeErrors",
            "ExportFormat",
            "History",
            "ImportLayout",
            "InputFormat",
            "Isolation",
            "Link",
            "OnDamage",
            "OnDataLoss",
            "Resolve",
            "Salvage",
            "StatsBy",
            "UpperBound",
        ),
        _CHOICE,
    ),
}


def parameters() -> Iterator[tuple[str, str]]:
    for function in VALID:
        for name in signature_of(function).parameters:
            yield function, name


def kinds_of(annotation: str) -> set[str]:
    """The kinds of values that an annotation takes."""
    parts = re.split(r" \| (?![^\[]*\])", annotation)
    return {kind for part in parts for kind in KINDS_OF[part]}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_partitions(tmp_path_factory.mktemp("odd") / "dump", PARTITION)


@pytest.fixture(scope="module")
def lake(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(kafka_index.export_records(dump, tmp_path_factory.mktemp("odd") / "lake").output)


def faults_of(name: str, function: str, given: dict[str, Any], *, is_right: bool) -> Iterator[str]:
    """Yield the faults of the outcome of a call, whose argument is of a right type or is not."""
    value = repr(given[name])[:80]
    try:
        result = called(function)(**given)
        repr(result)
        if hasattr(result, "__iter__") and not isinstance(result, bytes):
            list(result)
    except KafkaIndexError as error:
        text = str(error)
        if len(text) > MAX_MESSAGE or "\n" in text:
            yield f"{value}: {len(text)} characters: {text[:200]}"
        elif not is_right and not {name, name.replace("_", ".")} & set(re.split(r"[^\w.]+", text)):
            yield f"{value}: not named: {text}"
    except Exception as error:  # noqa: BLE001, because all others are faults
        yield f"{value}: {type(error).__name__}: {error}"
    else:
        if not is_right:
            yield f"{value}: taken"


def test_every_function_has_arguments() -> None:
    assert [name for name in FUNCTIONS if name not in VALID] == []


@pytest.mark.parametrize("function", VALID)
def test_valid_arguments_are_accepted_by_every_function(
    function: str, dump: Path, lake: Path, tmp_path: Path
) -> None:
    called(function)(**VALID[function](Places(dump, lake, tmp_path)))


@pytest.mark.parametrize(("function", "name"), list(parameters()))
def test_invalid_value_is_an_error_that_names_the_parameter(
    function: str,
    name: str,
    dump: Path,
    lake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameter = signature_of(function).parameters[name]
    right = kinds_of(parameter.annotation)
    faults: list[str] = []
    for kind, values in ODD.items():
        for number, value in enumerate(values(tmp_path)):
            folder = tmp_path / f"{kind}-{number}"
            folder.mkdir()
            (tmp_path / "a").write_text("=\n")
            monkeypatch.chdir(folder)
            given = VALID[function](Places(dump, lake, folder)) | {name: value}
            given.pop(EXCLUDED.get(name, ""), None)
            faults += faults_of(name, function, given, is_right=kind in right)
    assert not faults, "\n".join(faults)
