"""The subject of a class of `OutputTests`: its inputs, at its place, and a process that runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.outputs.output_tests import OutputTests, Subject
from tests.outputs.places import BucketPlace, LocalPlace
from tests.servers.faults import fault_proxy
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP
from tests.support.killed_runs import KilledRuns
from tests.support.remote import new_bucket


@pytest.fixture(scope="session")
def local_runs() -> Iterator[KilledRuns]:
    """A process that forks runs over local files."""
    with KilledRuns("dump", DUMP / "payments-0") as runs:
        yield runs


@pytest.fixture(scope="class")
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    tests = request.cls()
    assert isinstance(tests, OutputTests)
    root = tmp_path_factory.mktemp("output")
    if not tests.in_bucket:
        yield Subject(tests, LocalPlace(root, request.getfixturevalue("local_runs")))
        return
    s3: S3Server = request.getfixturevalue("s3")
    # Clients have threads, which no fork takes along: this process asks a store for nothing.
    prepared = ("obstore", "tests.servers.no_waits")
    with (
        fault_proxy(s3.endpoint) as proxy,
        new_bucket(s3.behind(proxy.endpoint)) as bucket,
        KilledRuns(prepared=prepared) as runs,
    ):
        yield Subject(tests, BucketPlace(root, runs, proxy, bucket))
