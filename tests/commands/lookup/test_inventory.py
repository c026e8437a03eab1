"""The inventory: the logs as a lookup knows them before it opens any."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import UpperBound
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.query.inventory import (
    PARTITION_SCHEMA,
    SEGMENT_SCHEMA,
    Inventory,
    collect_inventory,
)
from tests.commands.lookup.building import DUMP, make_dump


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_inventory_segments_equal_the_listing() -> None:
    inventory = collect_inventory([str(DUMP)])
    listing = list_dump([str(DUMP)], topics=None)
    assert inventory.segment_count == len(listing.segments)
    assert inventory.partition_count == 25
    for code in range(inventory.partition_count):
        files = inventory.partition_files(code)
        assert files == inventory.files(*inventory.partition_name(code))
        assert list(files.segments) == [
            segment
            for segment in listing.segments
            if (segment.topic, segment.partition) == (files.topic, files.partition)
        ]


def test_inventory_is_equal_after_pickling() -> None:
    inventory = collect_inventory([str(DUMP)], upper_bound=UpperBound.HIGH_WATERMARK)
    copy = pickle.loads(pickle.dumps(inventory))  # noqa: S301, our own
    assert copy.partitions.equals(inventory.partitions)
    assert copy.files("orders.eu-west", 2) == inventory.files("orders.eu-west", 2)


def test_inventory_of_a_million_segments_pickles_to_tens_of_megabytes() -> None:
    count, partitions = 1_000_000, 1_000
    each = count // partitions
    segments = pa.table(
        [
            np.tile(np.arange(each), partitions),
            np.full(count, 1 << 30),
            np.arange(count),
            np.zeros(count, bool),
            pa.repeat("", count),
            pa.nulls(count, pa.string()),
        ],
        schema=SEGMENT_SCHEMA,
    )
    rows = [
        (
            f"topic-{n}",
            0,
            f"/data/topic-{n}-0",
            None,
            0,
            None,
            [4],
            [0],
            None,
            None,
            False,
            0,
            n * each,
            each,
        )
        for n in range(partitions)
    ]
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), PARTITION_SCHEMA, strict=True)
    ]
    packed = pickle.dumps(Inventory(pa.table(columns, schema=PARTITION_SCHEMA), segments))
    assert len(packed) < 30_000_000
    files = pickle.loads(packed).files("topic-999", 0)  # noqa: S301, our own
    assert [segment.base_offset for segment in files.segments[:2]] == [0, 1]


def test_unreadable_leader_epochs_are_reported_and_the_run_continues(tmp_path: Path) -> None:
    make_dump(tmp_path, {"a-0": (0, 40)})
    path = tmp_path / "a-0" / "leader-epoch-checkpoint"
    put(path, "0\n1\nnonsense\n")
    inventory = collect_inventory([str(tmp_path)])
    assert inventory.partition_files(0).epochs == ()
    (skipped,) = inventory.skipped
    assert skipped.path == str(path)
    assert skipped.detail.startswith("line 3 of the checkpoint is malformed")


def test_partition_without_segments_has_no_files_in_the_inventory(tmp_path: Path) -> None:
    make_dump(tmp_path, {"b-0": (0, 40)})
    (tmp_path / "a-3").mkdir()
    inventory = collect_inventory([str(tmp_path)])
    assert inventory.partition_count == 1
    assert inventory.files("a", 3) is None
    codes = inventory.codes(pa.array(["a", "b", "a", None]), np.array([3, 0, 4, 0]))
    assert codes.tolist() == [-1, 1, -1, -1]
    assert inventory.partition_name(1) == ("b", 0)


def test_index_files_are_read_from_another_folder(tmp_path: Path) -> None:
    make_dump(tmp_path / "logs", {"a-0": (0, 40)})
    (tmp_path / "indexes").mkdir()
    inventory = collect_inventory([str(tmp_path / "logs")], indexes=str(tmp_path / "indexes"))
    assert inventory.partition_files(0).index_directory == str(tmp_path / "indexes" / "a-0")


def test_missing_index_folder_is_rejected(tmp_path: Path) -> None:
    make_dump(tmp_path)
    with pytest.raises(InputError, match="folder of index files does not exist"):
        collect_inventory([str(tmp_path)], indexes=str(tmp_path / "nowhere"))


def test_partition_in_two_directories_is_rejected(tmp_path: Path) -> None:
    make_dump(tmp_path / "d1", {"a-0": (0, 40)})
    make_dump(tmp_path / "d2", {"a-0": (40, 80)})
    with pytest.raises(InputError, match="a-0 is also in"):
        collect_inventory([f"{tmp_path}/d?"])


def test_topics_option_selects_topics(tmp_path: Path) -> None:
    make_dump(tmp_path)
    inventory = collect_inventory([str(tmp_path)], topics=re.compile("orders"))
    assert [inventory.partition_name(code) for code in range(inventory.partition_count)] == [
        ("orders", 0),
        ("orders", 1),
    ]


def test_swap_log_keeps_its_path(tmp_path: Path) -> None:
    make_dump(tmp_path, {"a-0": (0, 40)})
    (tmp_path / "a-0" / f"{20:020d}.log").rename(tmp_path / "a-0" / f"{20:020d}.log.swap")
    paths = [
        segment.log_path
        for segment in collect_inventory([str(tmp_path)]).partition_files(0).segments
    ]
    assert [Path(path).name for path in paths] == [f"{0:020d}.log", f"{20:020d}.log.swap"]
