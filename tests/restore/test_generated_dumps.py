"""Generated copies of partitions, damaged and restored in every order, against an oracle.

``KAFKA_INDEX_DUMPS`` is the number of dumps, and ``KAFKA_INDEX_SEED`` draws others.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.restore.generated_dumps import draw_and_judge
from tests.support.campaign import drawn

DUMPS = int(os.environ.get("KAFKA_INDEX_DUMPS") or drawn(1000))
SEED = os.environ.get("KAFKA_INDEX_SEED") or "0"
#: A failure names the dumps of its part.
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_batches_intact_in_any_copy_are_restored(tmp_path: Path, part: int) -> None:
    faults = []
    for number in range(part, DUMPS, PARTS):
        root = tmp_path / str(number)
        faults += draw_and_judge(root, f"{SEED}-{number}")
        shutil.rmtree(root)
    assert not faults, "\n".join(faults)
