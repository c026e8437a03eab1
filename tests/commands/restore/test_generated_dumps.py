"""Generated copies of partitions, damaged and restored in every order, against an oracle.

``KAFKA_INDEX_DUMPS`` is the number of dumps, and ``KAFKA_INDEX_SEED`` draws others.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kafka_index.commands.restore.request import Salvage
from tests.commands.restore.generated_dumps import kept_batches, restore, start_random_directory
from tests.support.campaign import sample_size
from tests.support.missing_offsets import NAME, write_partition
from tests.support.segments import WRAPPER_CODECS, message, wrapper

DUMPS = int(os.environ.get("KAFKA_INDEX_DUMPS") or sample_size(1000))
SEED = os.environ.get("KAFKA_INDEX_SEED") or "0"
#: A failure names the dumps of its part.
PARTS = 10


def test_message_with_an_offset_far_from_its_inner_offsets_is_lost(tmp_path: Path) -> None:
    far = wrapper(1 << 50, 0, [(0, 1)], WRAPPER_CODECS[0])
    write_partition(tmp_path / "dump", {0: far + message(1, 0)})
    result = restore((tmp_path / "dump",), tmp_path / "out", Salvage.BATCHES)
    assert result.lost
    assert kept_batches(tmp_path / "out" / NAME) == [message(1, 0)]


@pytest.mark.parametrize("part", range(PARTS))
def test_batches_intact_in_any_replica_are_restored(tmp_path: Path, part: int) -> None:
    faults = []
    for number in range(part, DUMPS, PARTS):
        root = tmp_path / str(number)
        faults += start_random_directory(root, f"{SEED}-{number}")
        shutil.rmtree(root)
    assert not faults, "\n".join(faults)
