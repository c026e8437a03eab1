"""``rewrite`` on Spark writes the same files as on threads."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs
from kafka_index.spark.rewrite import match_partitions, rewrite_partitions
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.writing.condition import Condition
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewrite_plan import plan_rewrite
from kafka_index.writing.rewriting import RewriteSettings, digest_of
from kafka_index.writing.selection import Selection
from tests.support.command_line import DUMP, run_here

CONDITION = "offset < 100"


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_a_rewrite_on_spark_is_that_of_threads(spark: SparkSession, tmp_path: Path) -> None:
    result = run_here(
        "rewrite", "--input", DUMP, "--drop-where", CONDITION, "--output", tmp_path / "local"
    )
    assert result.returncode == 0, result.stderr

    settings = RewriteSettings(Selection(condition=Condition.parse(CONDITION)))
    plans, directories = plan_rewrite([str(DUMP)], None)
    with (
        Jobs(spark) as jobs,
        RewriteOutput(str(tmp_path / "spark"), [str(DUMP)], digest_of(plans, settings)) as output,
    ):
        output.begin()
        matched = match_partitions(spark, plans, settings, cores=2, jobs=jobs)
        errors = rewrite_partitions(
            spark,
            matched,
            output.root,
            output.staging,
            settings,
            cores=2,
            jobs=jobs,
            target=SharedTarget(),
        )
        ends = {
            each.plan.partition: None if each.match is None else each.match.end_offset
            for each in matched
        }
        output.finish(directories, ends, {})

    assert set(errors) == {None}
    found = contents(tmp_path / "spark")
    assert found
    assert found == contents(tmp_path / "local")
