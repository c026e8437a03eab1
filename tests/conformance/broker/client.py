"""Kafka's own clients (``java/*.java``) in a process of their own, as a Python object."""

from __future__ import annotations

import hashlib
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.conformance.kafka_jars import DEFAULT_VERSION, class_path, ensure_made, target_of, tool
from tests.support.timeouts import TIMEOUT_SECONDS

from .broker import JAVA_FOLDER, java

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .topics import Topic


ISOLATIONS = ("read_uncommitted", "read_committed")


class ClientError(Exception):
    """Kafka's clients refused or failed; the message names the request."""


class Digest(NamedTuple):
    """The records that a consumer got from a partition."""

    records: int
    sha256: str


class Producer(NamedTuple):
    """The state of a producer at the leader of a partition; None for unknown fields."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_txn_first_offset: int | None


class Client:
    """Clients of one cluster; not thread-safe. Ends, without closing producers, with its context.

    `bootstrap`: address of a broker. `scratch`: folder for files of questions.
    """

    def __init__(self, bootstrap: str, scratch: Path) -> None:
        self._scratch = scratch
        self._process = subprocess.Popen(
            program("Client", bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        # The end of its input ends the program.
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def create(self, topic: Topic, replicas: Sequence[int] = (1,)) -> None:
        """Create a topic; the brokers lead its partitions in turn."""
        settings = [f"{key}={value}" for key, value in topic.settings.items()]
        self._ask("create", topic.name, topic.partitions, _comma(replicas), *settings)

    def fill(self, topic: Topic) -> None:
        """Produce all of a topic's traffic."""
        for traffic in topic.traffic:
            options = {**traffic.options(), "topic": topic.name, "partitions": topic.partitions}
            self._ask(traffic.command, *(f"{key}={value}" for key, value in options.items()))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start."""
        self._ask("delete-records", topic, partition, before)

    def reassign(self, replicas: Sequence[int], topics: Iterable[str]) -> None:
        """Give every partition of some topics these replicas; does not wait for them."""
        self._ask("reassign", _comma(replicas), *topics)

    def move(self, broker: int, directory: Path, topics: Iterable[str]) -> None:
        """Have a broker move its replicas of some topics into one of its directories."""
        self._ask("move", broker, directory, *topics)

    def await_in_sync(self, replicas: int, topics: Iterable[str]) -> None:
        """Wait until every partition has so many replicas in sync; 0: all of its own."""
        self._ask("await-in-sync", replicas, *topics)

    def digests(self, isolation: str, topics: Iterable[str]) -> dict[str, Digest]:
        """Consume topics to their ends; keys are names of partition directories."""
        lines = [line.split() for line in self._ask("digest", isolation, *topics)]
        return {
            f"{topic}-{partition}": Digest(int(records), sha256)
            for topic, partition, records, sha256 in lines
        }

    def producers(self, topics: Iterable[str]) -> dict[str, set[Producer]]:
        """The states of producers at leaders; keys are names of partition directories."""
        result: dict[str, set[Producer]] = {}
        for line in self._ask("producers", *topics):
            partition, *fields = line.split()
            of_partition = result.setdefault(partition, set())
            if fields:
                known = [None if field == "-" else int(field) for field in fields]
                of_partition.add(Producer(*known))  # type: ignore[arg-type]
        return result

    def settled_producers(self, partition: str, *, open_transactions: int) -> set[Producer]:
        """Return the producers of a partition once the markers are written."""
        deadline = time.monotonic() + 60
        while True:
            result = self.producers([partition.rpartition("-")[0]])[partition]
            still_open = sum(one.current_txn_first_offset is not None for one in result)
            if still_open == open_transactions or time.monotonic() > deadline:
                return result
            time.sleep(0.1)

    def open_producer(self, name: str, *, transactional: bool) -> None:
        """Open a producer that stays open; one of the same name is fenced off by it.

        It is idempotent, with `name` as its ``transactional.id`` where it is transactional.
        """
        self._ask("open", name, str(transactional).lower())

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        self._ask("begin", name)

    def send(self, name: str, topic: str, batches: int) -> None:
        """Have an open producer send batches of a record each, and wait for each."""
        self._ask("send", name, topic, batches)

    def end(self, name: str, *, commit: bool) -> None:
        """End the transaction."""
        self._ask("commit" if commit else "abort", name)

    def times(self, queries: Iterable[tuple[str, int, int]]) -> list[str]:
        """Answers to topic, partition and timestamp: offset, timestamp and leader epoch.

        -1, -2 and -3 ask for the end, the start and the largest timestamp.
        """
        return self._ask("times", self._write(queries))

    def offsets(self, queries: Iterable[tuple[str, int, int]]) -> list[str]:
        """The offset of the first record from topic, partition and offset.

        Or ``none``, where there is none up to the end, or ``out_of_range``.
        """
        return self._ask("offsets", self._write(queries))

    def _write(self, queries: Iterable[tuple[str, int, int]]) -> Path:
        path = self._scratch / "queries.txt"
        path.write_text("".join(f"{a} {b} {c}\n" for a, b, c in queries), encoding="utf-8")
        return path

    def _ask(self, *words: object) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        lines: list[str] = []
        for line in self._process.stdout:
            if line == "ok\n":
                return lines
            if line.startswith("error "):
                raise ClientError(f"{words}: {line.removeprefix('error ').strip()}")
            lines.append(line.rstrip("\n"))
        raise ClientError(f"{words}: the clients ended")


def _comma(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def program(name: str, *arguments: str) -> list[str]:
    """Command line of a program of ours that has Kafka's clients."""
    return java(name, *arguments, classes=_ensure_classes(), level="error")


def run_program(name: str, *arguments: str) -> str:
    """Run a program of ours that has Kafka's clients, and return what it prints."""
    result = subprocess.run(
        program(name, *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def _ensure_classes() -> Path:
    """Folder of the compiled programs."""
    sources = sorted(JAVA_FOLDER.glob("*.java"))
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = target_of(DEFAULT_VERSION) / "broker-client"

    def compile_sources() -> None:
        command = [tool("javac"), "-Xlint:all", "-Werror", "-d", str(folder), "-cp", class_path()]
        subprocess.run([*command, *map(str, sources)], check=True)

    ensure_made(folder, stamp, compile_sources)
    return folder
