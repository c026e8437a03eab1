"""Tables of exports as Spark reads them, by its runtimes of Iceberg and Delta; and REST catalogs.

The catalog is Apache's own server. Spark is the newest that both runtimes exist for.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.servers.iceberg_rest import rest_catalog
from tests.servers.lake_spark import read_tables
from tests.servers.processes import free_port
from tests.support.campaign import sample_size
from tests.support.command_line import COMMAND, DUMP, Argument, environment, run_here
from tests.support.lake_tables import (
    NAMESPACE,
    DeltaTables,
    ExportedLake,
    IcebergTables,
    as_records,
    newest_records,
    records_of,
)

pytestmark = pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")

TOPICS = ("imported-history", "customer-profiles", "payments", "__transaction_state")


class RestCatalogTables(IcebergTables):
    """Tables in a REST catalog."""

    def __init__(self, folder: Path, history: str, uri: str) -> None:
        super().__init__(folder, history)
        self._uri = uri

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def namespace(self) -> str:
        """A namespace of its own: all tables are in one catalog."""
        return f"{NAMESPACE}_{self.folder.name.replace('-', '_')}"

    @property
    def catalog(self) -> Catalog:
        return load_catalog("default", type="rest", uri=self.uri)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest") / "catalog") as uri:
        yield uri


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory, catalog: str) -> dict[str, ExportedLake]:
    """Tables of each format, catalog and history, which three runs at once have committed to."""
    root = tmp_path_factory.mktemp("lakes")
    actual: dict[str, ExportedLake] = {}
    for history in ("full", "latest"):
        for by_date in (False, True):
            name = f"{history}{'-by-date' if by_date else ''}"
            actual[f"delta-{name}"] = DeltaTables(root / f"delta-{name}", history)
            actual[f"sqlite-{name}"] = IcebergTables(root / f"sqlite-{name}", history)
            actual[f"rest-{name}"] = RestCatalogTables(root / f"rest-{name}", history, catalog)
    first = root / "first"
    for topic in TOPICS:
        for folder in DUMP.glob(f"{topic}-[0-9]*"):
            shutil.copytree(folder, first / folder.name)
            # Before the last segment was begun.
            last = max((first / folder.name).glob("*.log"))
            for path in last.parent.glob(f"{last.stem}.*"):
                path.unlink()
    for name, lake in actual.items():
        options = ("--by-date",) if name.endswith("by-date") else ()
        result = run_here("export", "--input", first, *lake.options, *options)
        assert result.returncode == 0, result.stdout + result.stderr
        export_three_times(lake, *options)
    return actual


def export_three_times(lake: ExportedLake, *options: Argument) -> None:
    where = ("--input", DUMP, "--topics", "|".join(TOPICS), *lake.options, *options)
    command = [*COMMAND, "export", *map(str, where)]
    started = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) for _ in range(3)
    ]
    codes = {one.wait() for one in started}
    assert 0 in codes
    assert codes <= {0, 3}


def source_of(lake: ExportedLake, topic: str) -> dict[str, str]:
    if isinstance(lake, RestCatalogTables):
        return {"format": "iceberg", "source": f"{lake.namespace}.`{topic}`"}
    if isinstance(lake, IcebergTables):
        return {"format": "iceberg", "source": lake.table(topic).metadata_location}
    return {"format": "delta", "source": str(lake.output / topic)}


def test_spark_reads_the_rows_of_all_tables(
    tmp_path: Path, lakes: dict[str, ExportedLake], catalog: str
) -> None:
    read_tables(
        [
            {**source_of(lake, topic), "output": str(tmp_path / name / topic)}
            for name, lake in lakes.items()
            for topic in TOPICS
        ],
        catalog,
    )
    for name, lake in lakes.items():
        for topic in TOPICS:
            expected = expected_rows(topic, lake.history)
            assert as_records(read(tmp_path / name / topic)).equals(expected), (name, topic)
            assert as_records(lake.read(topic)).equals(expected), (name, topic)


def expected_rows(topic: str, history: str) -> pa.Table:
    records = records_of(DUMP, topics=[topic])
    return newest_records(records) if history == "latest" else records


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet"))))


@pytest.mark.parametrize("history", ["full", "latest"])
def test_unavailable_rest_catalog_ends_the_run_and_a_rerun_completes_it(
    tmp_path: Path, history: str
) -> None:
    port = free_port()
    lake = RestCatalogTables(tmp_path / "lake", history, f"http://127.0.0.1:{port}")
    command = ("--input", DUMP, "--topics", "customer-profiles", *lake.options)
    assert run_here("export", *command).returncode == 3
    with rest_catalog(tmp_path / "catalog", port):
        assert run_here("export", *command).returncode == 0
        expected = expected_rows("customer-profiles", history)
        assert as_records(lake.read("customer-profiles")).equals(expected)
    assert run_here("export", *command).returncode == 3
