"""The REST catalog server that Iceberg tests its clients with, on a catalog in SQLite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.kafka_jars import needing_kafka, rest_catalog_jars, tool
from tests.servers.processes import free_port, running, wait_for_port


@contextmanager
def rest_catalog(folder: Path, port: int | None = None) -> Iterator[str]:
    """Run a catalog whose database and warehouse are in a folder; yield its URI."""
    with needing_kafka():
        class_path = os.pathsep.join(map(str, rest_catalog_jars()))
        java = tool("java")
    folder.mkdir(parents=True)
    port, log = port or free_port(), folder / "server.log"
    environment = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
    }
    command = [java, "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"]
    with running(command, log, environment) as process:
        wait_for_port(process, port, log)
        yield f"http://127.0.0.1:{port}"
