"""Builds of many small segments: little passes through the driver, however many there are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from tests.cluster.conftest import run
from tests.support.builds import rubbish
from tests.support.command_line import build_here
from tests.support.dumps import raw_batch_table
from tests.support.segments import batch
from tests.support.spark_cluster import Cluster
from tests.support.transactional_logs import built_files

PARTITIONS, SEGMENTS = 40, 100
# Spark refuses the results of a job, or the data of a task, that are larger.
LIMITS = ["spark.driver.maxResultSize=1m", "spark.rpc.message.maxSize=1", "spark.driver.memory=1g"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One-batch segments, in partitions of hard links to the same logs."""
    root = tmp_path_factory.mktemp("many") / "logs"
    first = root / "topic-0"
    first.mkdir(parents=True)
    for offset in range(SEGMENTS):
        name = segment_file_name(offset, LOG_SUFFIX)
        (first / name).write_bytes(batch(offset, records=1))
        for number in range(1, PARTITIONS):
            folder = root / f"topic-{number}"
            folder.mkdir(exist_ok=True)
            os.link(first / name, folder / name)
    return root


@pytest.fixture(scope="module")
def expected(logs: Path) -> dict[str, bytes]:
    out = logs.with_name("expected")
    assert build_here("--input", logs, "--output", out).returncode == 0
    return _files(out)


def _files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in built_files(root).items() if "/." not in name}


@pytest.mark.parametrize("form", ["logs", "parquet in random order"])
def test_a_build_of_many_small_segments_needs_little_of_the_driver(
    cluster: Cluster,
    python: Path,
    logs: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    form: str,
) -> None:
    given = logs
    if form != "logs":
        table = raw_batch_table(logs)
        order = np.random.default_rng(7).permutation(table.num_rows)
        given = tmp_path / "in.parquet"
        pq.write_table(table.take(pa.array(order)), given, row_group_size=1_000)
    out = tmp_path / "out"

    done = run(
        python,
        *("build", "--engine", "spark", "--master", cluster.master),
        *("--input", given, "--output", out),
        settings=LIMITS,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert _files(out) == expected
    assert rubbish(tmp_path) == []
