"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.conformance.kafka_jars import needing_kafka
from tests.servers.hdfs import HdfsServer, running_hdfs
from tests.servers.s3 import S3Server, report_header, running_s3
from tests.support.java import spark_environment
from tests.support.remote import bucket_for_tasks, new_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: the first call of a kernel compiles it, and shared machines stall. In CI the same
# examples are generated each time, so that a failure there is a failure here.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Commands that tests start, and interrupt, inherit what the process of the tests ignores, as it
# does in a background job of a shell.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Print which S3 server the tests use."""
    return report_header()


def pytest_sessionfinish() -> None:
    """Let the interpreter collect at its end what commands froze in the process of the tests.

    DuckDB reports its functions and types as leaks otherwise, in forty lines.
    """
    gc.unfreeze()


# What costs so much to start that all tests that use it run in one process.
_SHARED = ("running", "spark", "hdfs")
_LONG = ("spark", "endtoend")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests for ``--dist loadgroup``: by file, or by the costly server that a file uses.

    A file that asks for the server by its name has a mark of the group.
    The folders whose groups take long come first, so that the short ones fill the end.
    """
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] not in _LONG)
    group_of: dict[Path, str] = {}
    for item in items:
        if mark := item.get_closest_marker("xdist_group"):
            group_of.setdefault(item.path, mark.args[0])
        for name in _SHARED:
            if name in getattr(item, "fixturenames", ()):
                group_of.setdefault(item.path, name)
    for item in items:
        name = group_of.get(item.path, str(item.path.relative_to(item.config.rootpath)))
        item.add_marker(pytest.mark.xdist_group(name))
        # pytest-xdist 3.8 appends the group to a name that pytest 9.2 no longer reads.
        if getattr(config.option, "loadgroup", False) and not hasattr(item, "_nodeid"):
            item._id = type(item._id).parse(f"{item.nodeid}@{name}")


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java that is quick to start rather than quick to run, for jobs of a few rows."""
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests that need one, made as the product makes it."""
    from kafka_index.spark.session import build_session  # noqa: PLC0415, slow to import

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


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, where ``tmp_path`` may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server, one for each process of the tests."""
    # Not pytest's folder, which keeps what the last three runs wrote.
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Iterator[str]:
    """The URI of a bucket that this process can reach."""
    with new_bucket(s3) as uri:
        yield uri


@pytest.fixture(scope="module")
def module_bucket(s3: S3Server) -> Iterator[str]:
    """A bucket for the tests of a file."""
    with new_bucket(s3) as uri:
        yield uri


@pytest.fixture
def configured_bucket(s3: S3Server, tmp_path: Path) -> Iterator[str]:
    """A bucket that tasks of Spark can reach too."""
    with bucket_for_tasks(s3, tmp_path) as uri:
        yield uri


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsServer]:
    """A real HDFS; skips where it cannot run, and fails instead where Kafka's own code has to."""
    with (
        needing_kafka(),
        tempfile.TemporaryDirectory() as folder,
        running_hdfs(Path(folder)) as server,
    ):
        yield server
