"""Rebuild the index files of a real broker's data directory and compare them with its own.

Runs the command line into a temporary directory and compares every offset, time and transaction
index and every producer snapshot byte for byte with the broker's file. Exits with 1 if one
differs.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from kafka_index.cli.terminal import Paint, Table, print_text
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, format_seconds

HERE = Path(__file__).resolve().parent
DUMP = HERE / "dump"
SETTINGS = HERE / "dump.properties"
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")


@dataclass
class Partition:
    """A row of the table."""

    segments: int = 0
    log_bytes: int = 0
    offset_entries: int = 0
    time_entries: int = 0
    seconds: float = 0.0
    files: int = 0
    different: list[str] = field(default_factory=list)


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["local", "spark"], default="spark")
    engine = parser.parse_args().engine
    paint = Paint(sys.stdout)
    with tempfile.TemporaryDirectory(prefix="kafka-index-demo-") as folder:
        output, report = Path(folder, "indexes"), Path(folder, "report.parquet")
        print("The data directory of a Kafka 4.3.1 broker, rebuilt from its logs:\n", flush=True)
        code = rebuild(engine, output, report, paint)
        if code:
            return code
        partitions = read_report(report)
        compare(output, partitions)
    print()
    print_text(sys.stdout, table(partitions, paint))
    return 1 if any(partition.different for partition in partitions.values()) else 0


def rebuild(engine: str, output: Path, report: Path, paint: Paint) -> int:
    """Run ``kafka-index build`` as a process of its own."""
    command = [str(Path(sys.executable).with_name("kafka-index")), "build"]
    command += ["--input", short(DUMP), "--config", short(SETTINGS)]
    command += ["--output", str(output), "--report", str(report), "--engine", engine]
    print(paint.strong("$ " + shlex.join(["kafka-index", *command[1:]])), flush=True)
    return subprocess.run(command, check=False).returncode


def short(path: Path) -> str:
    """Return a path relative to the working directory if it is below it."""
    working_folder = Path.cwd()
    return str(path.relative_to(working_folder) if path.is_relative_to(working_folder) else path)


def read_report(report: Path) -> dict[str, Partition]:
    """Sum the rows of the report by partition."""
    partitions: dict[str, Partition] = {}
    for row in pq.read_table(report).to_pylist():
        partition = partitions.setdefault(f"{row['topic']}-{row['partition']}", Partition())
        partition.segments += 1
        partition.log_bytes += row["log_size_bytes"]
        partition.offset_entries += row["offset_entries"]
        partition.time_entries += row["time_entries"]
        partition.seconds += row["seconds"]
    return partitions


def compare(output: Path, partitions: dict[str, Partition]) -> None:
    """Compare every index file that the broker or the build wrote."""
    files = sorted(set(index_files(DUMP)) | set(index_files(output)))
    for name in files:
        broker, ours = DUMP / name, output / name
        partition = partitions.setdefault(name.parent.name, Partition())
        partition.files += 1
        if not ours.exists():
            partition.different.append(f"{name}: the build did not write it")
        elif not broker.exists():
            partition.different.append(f"{name}: the broker has no such file")
        elif ours.read_bytes() != broker.read_bytes():
            partition.different.append(f"{name}: differs from the broker's")


def index_files(root: Path) -> Iterator[Path]:
    """Yield the index files of the partitions of a data directory, relative to it.

    The snapshot at the log start is left out: it holds state from before the log.
    """
    for path in root.glob("*/*"):
        first_log = min((DUMP / path.parent.name).glob("*.log"), default=path)
        is_first = path.suffix == ".snapshot" and path.stem <= first_log.stem
        if path.suffix in SUFFIXES and not is_first:
            yield path.relative_to(root)


def table(partitions: dict[str, Partition], paint: Paint) -> Iterator[str | Table]:
    """Yield the lines of the table and the result."""
    header = (
        "partition",
        "segments",
        "log bytes",
        "offset entries",
        "time entries",
        "index files",
        "identical",
    )
    rows = [
        (
            name,
            format_count(partition.segments),
            format_bytes(partition.log_bytes),
            format_count(partition.offset_entries),
            format_count(partition.time_entries),
            format_count(partition.files),
            paint.bad("no") if partition.different else paint.good("yes"),
        )
        for name, partition in sorted(partitions.items())
    ]
    yield Table(header, rows)
    different = [text for partition in partitions.values() for text in partition.different]
    files = sum(partition.files for partition in partitions.values())
    seconds = sum(partition.seconds for partition in partitions.values())
    yield ""
    yield from (paint.bad(text) for text in different)
    if different or not files:
        yield paint.bad(f"{plural(len(different), 'file')} of {files} differ from the broker's")
    else:
        yield paint.good(
            f"all {files} index files are the broker's own, byte for byte "
            f"({format_seconds(seconds)} of work in the tasks)"
        )


if __name__ == "__main__":
    sys.exit(main())
