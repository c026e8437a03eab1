"""One Spark session for all tests that need one, made as the product makes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kafka_index.spark.session import build_session
from tests.support.java import spark_environment


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # Quick to start rather than quick to run, for jobs of a few rows.
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        session = build_session("local[2]", "kafka-index tests")
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session
        session.stop()


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this process run on the session, and leave it, as on Databricks."""
    assert spark.version
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
