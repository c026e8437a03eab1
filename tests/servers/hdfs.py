"""Hadoop's own HDFS, a name node and a data node in one process: MiniDFSCluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.kafka_jars import ensure_made, fetch_jars, project_hash, tool
from tests.servers.processes import built_folder, running, wait_for_line
from tests.support.java import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROJECT = Path(__file__).parent / "minihdfs"


@dataclass(frozen=True)
class HdfsServer:
    """A running HDFS; blocks are of 4 MiB."""

    uri: str


@contextmanager
def running_hdfs(folder: Path) -> Iterator[HdfsServer]:
    """Run an HDFS whose blocks and edits lie in a folder.

    Raises `KafkaUnavailable` when Java or Maven is missing, or the jars cannot be fetched.
    """
    jars = built_folder() / "minihdfs"
    ensure_made(jars, project_hash(_PROJECT), lambda: fetch_jars(_PROJECT, jars))
    java = [tool("java"), "-Xmx512m", *QUICK]
    command = [*java, "-cp", f"{jars}/*", str(_PROJECT / "MiniHdfs.java")]
    log = folder / "hdfs.log"
    with running([*command, str(folder / "hdfs")], log) as process:
        yield HdfsServer(wait_for_line(process, log, "hdfs://"))
