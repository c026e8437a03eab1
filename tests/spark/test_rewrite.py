"""``rewrite`` on Spark writes the same files as on threads."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.dropping.condition import Condition, Selection
from kafka_index.metadata.directory import find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.spark.workers import session_workers
from kafka_index.tiered.options import TieredOptions
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewriting import (
    RewriteSettings,
    digest_of,
    match_partitions,
    plan_rewrite,
    rewrite_partitions,
    tiered_starts,
)
from tests.support.command_line import DUMP, run_here
from tests.support.tiered import ENCRYPTED, setting

CONDITION = "offset < 100"
#: Topics with local and with encrypted remote segments, one of them with transactions.
TIERED_TOPICS = "cut_front|wallet_tx"


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def rewrite_on_threads(output: Path, *source: str | Path) -> None:
    result = run_here(
        "rewrite", *source, "--drop-where", CONDITION, "--allow-revive", "--output", output
    )
    assert result.returncode == 0, result.stderr


def rewrite_on_spark(
    spark: SparkSession,
    output_path: Path,
    source: str,
    topics: re.Pattern[str] | None = None,
    tiered: TieredOptions | None = None,
) -> None:
    plans, listing = plan_rewrite([source], topics, tiered=tiered)
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    settings = RewriteSettings(
        Selection(condition=Condition.parse(CONDITION)),
        find_cluster(None, listing.data_directories, budget).settings(LogConfig()),
        allows_revival=True,
    )
    with (
        session_workers(spark) as workers,
        RewriteOutput(str(output_path), [source], digest_of(plans, settings)) as output,
    ):
        output.begin()
        matched = list(match_partitions(workers, plans, settings))
        written = list(rewrite_partitions(workers, matched, output.root, output.staging, settings))
        ends = {
            each.plan.partition: None if each.match is None else each.match.end_offset
            for each in matched
        }
        output.finish(listing.data_directories, ends, tiered_starts(plans))
    assert {error for _, error in written} == {None}


def test_a_rewrite_on_spark_is_that_of_threads(spark: SparkSession, tmp_path: Path) -> None:
    rewrite_on_threads(tmp_path / "local", "--input", DUMP)
    rewrite_on_spark(spark, tmp_path / "spark", str(DUMP))

    found = contents(tmp_path / "spark")
    assert found
    assert found == contents(tmp_path / "local")


def test_remote_segments_are_rewritten_on_spark_as_on_threads(
    spark: SparkSession, tmp_path: Path
) -> None:
    at = setting(ENCRYPTED)
    keys = [word for key, file in at.keys for word in ("--tiered-key", f"{key}={file}")]
    source = ["--input", at.data, "--tiered", at.remote, *keys, "--topics", TIERED_TOPICS]
    rewrite_on_threads(tmp_path / "local", *source)
    tiered = TieredOptions((at.remote,), keys=at.keys)
    rewrite_on_spark(spark, tmp_path / "spark", at.data, re.compile(TIERED_TOPICS), tiered)

    found = contents(tmp_path / "spark")
    assert sum(name.endswith(".log") for name in found) > 10
    assert found == contents(tmp_path / "local")
