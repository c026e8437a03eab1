"""``rewrite`` on Spark writes the same files as on threads."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.command_line import DUMP, run_here


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_a_rewrite_on_spark_is_that_of_threads(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None
    arguments = ("--input", DUMP, "--drop-where", "offset < 100", "--topics", "p.*|orders.*")

    for name, engine in (("local", "local"), ("spark", "spark")):
        result = run_here("rewrite", *arguments, "--output", tmp_path / name, "--engine", engine)
        assert result.returncode == 0, result.stderr

    found = contents(tmp_path / "spark")
    assert found
    assert found == contents(tmp_path / "local")
