#!/usr/bin/env python3
"""Make ``examples/dump``: the data directory of a real Kafka broker.

Fetches Kafka with Maven, starts one KRaft broker on 127.0.0.1, lets ``dump.Traffic``
create and fill the topics, waits for compaction and deletion to end, stops the broker
cleanly and copies its data directory. Needs Python 3.11, a JDK 17 and Maven.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
CLUSTER_ID = base64.urlsafe_b64encode(b"kafka-index-dump").decode().rstrip("=")
# What dump.Traffic leaves for the broker to do by itself.
COMPACTED = ("customer-profiles-0", "inventory.levels-0")
TRIMMED = "shipments.tracking-0"
# Names that exist only while the broker runs, or while it still has work to do.
TRANSIENT = ("*.deleted", "*.cleaned", "*.swap", "*.tmp")


def free_ports(count: int) -> list[int]:
    """Find TCP ports of 127.0.0.1 that are free now.

    Parameters
    ----------
    count : int
        How many.

    Returns
    -------
    list of int
        Different port numbers.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def java(*arguments: str) -> list[str]:
    """Build the command line of a Java program of the Maven project.

    Parameters
    ----------
    *arguments : str
        Main class and its arguments.

    Returns
    -------
    list of str
        The command.
    """
    class_path = f"{HERE / 'target' / 'classes'}:{HERE / 'target' / 'lib'}/*"
    return ["java", "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-cp", class_path, *arguments]


def wait_for(what: str, done: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds.

    Parameters
    ----------
    what : str
        Name of the condition, for the error message.
    done : callable
        The condition.
    seconds : float
        How long to wait at most.

    Raises
    ------
    TimeoutError
        If the condition does not hold in time.
    """
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


@contextlib.contextmanager
def broker(work: Path, data: Path) -> Iterator[str]:
    """Run a broker; stop it with SIGTERM at the end.

    Parameters
    ----------
    work : Path
        Existing directory for the settings and the broker's log.
    data : Path
        The data directory to format and fill.

    Yields
    ------
    str
        The bootstrap address.

    Raises
    ------
    RuntimeError
        If the broker does not start, or does not stop cleanly.
    """
    client, controller = free_ports(2)
    settings = work / "server.properties"
    settings.write_text(
        (HERE / "server.properties").read_text()
        + f"\nlisteners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n"
        + f"controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={data}\n"
    )
    log = work / "broker.log"
    with log.open("wb") as out:
        format_command = java(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)
        )
        subprocess.run(format_command, check=True, stdout=out, stderr=subprocess.STDOUT)
        process = subprocess.Popen(
            java("kafka.Kafka", str(settings)), stdout=out, stderr=subprocess.STDOUT
        )
        try:

            def started() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"the broker ended:\n{log.read_text()[-3000:]}")
                return "Kafka Server started" in log.read_text()

            wait_for("start of the broker", started, 60)
            yield f"127.0.0.1:{client}"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if not (data / ".kafka_cleanshutdown").exists():
        raise RuntimeError(f"the broker did not stop cleanly:\n{log.read_text()[-3000:]}")


def segments(partition: Path) -> list[int]:
    """List the base offsets of a partition's segments.

    Parameters
    ----------
    partition : Path
        The partition's directory.

    Returns
    -------
    list of int
        Base offsets, rising.
    """
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def settled(data: Path) -> bool:
    """Tell whether compaction and deletion have ended.

    Parameters
    ----------
    data : Path
        Data directory of the running broker.

    Returns
    -------
    bool
        True when all but the active segments are compacted, the segments below the
        moved log start are gone and no transient file is left.
    """
    checkpoint = data / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return False
    cleaned: dict[str, int] = {}
    for line in checkpoint.read_text().splitlines()[2:]:
        topic, partition, offset = line.rsplit(" ", 2)
        cleaned[f"{topic}-{partition}"] = int(offset)
    return (
        all(cleaned.get(name) == segments(data / name)[-1] for name in COMPACTED)
        and segments(data / TRIMMED)[0] > 0
        and not any(any(data.rglob(pattern)) for pattern in TRANSIENT)
    )


def write_manifest(dump: Path, path: Path) -> None:
    """Write the SHA-256 sums of a directory in the form of ``sha256sum``.

    Parameters
    ----------
    dump : Path
        The directory.
    path : Path
        The file to write; the names in it are relative to its directory.
    """
    lines = []
    for file in sorted(dump.rglob("*")):
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{digest}  {file.relative_to(path.parent).as_posix()}\n")
    path.write_text("".join(lines))


def main() -> int:
    """Make the dump.

    Returns
    -------
    int
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Make the example dump with a real broker.")
    parser.add_argument(
        "--output", type=Path, default=EXAMPLES, help="where dump* goes (default: %(default)s)"
    )
    output: Path = parser.parse_args().output.resolve()
    began = time.monotonic()
    subprocess.run(["mvn", "-q", "-B", "process-classes"], cwd=HERE, check=True)
    with tempfile.TemporaryDirectory(prefix="make-dump-") as name:
        work = Path(name)
        data = work / "data"
        overrides = work / "dump.properties"
        with broker(work, data) as bootstrap:
            with (work / "traffic.log").open("wb") as out:
                command = java("dump.Traffic", bootstrap, str(overrides))
                ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
            if ended.returncode:
                print((work / "traffic.log").read_text()[-5000:], file=sys.stderr)
                return 1
            wait_for("compaction and deletion", lambda: settled(data), 120)
        now = time.time()
        dump = output / "dump"
        output.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(dump, ignore_errors=True)
        # Empty, and only there to keep a second broker out of the directory.
        shutil.copytree(data, dump, ignore=shutil.ignore_patterns(".lock"))
        moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        (output / "dump.properties").write_text(
            "# Written by make_dump/make_dump.py: the settings of the dump's broker and topics\n"
            "# that index files depend on and that a data directory does not tell.\n"
            f"# The broker stopped at {moment}, {int(now * 1000)} ms.\n" + overrides.read_text()
        )
    write_manifest(dump, output / "dump.sha256")
    files = [path for path in dump.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{dump}: {len(files)} files, {size:,} bytes, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
