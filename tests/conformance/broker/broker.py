"""A Kafka broker in a process of its own: started, stopped, killed, and started again.

A `BrokerFolders` is what such a broker leaves on disk, and can be copied; a `Broker` runs on one.
"""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.conformance.kafka_jars import (
    DEFAULT_VERSION,
    class_path,
    ensure_made,
    java_version,
    target_of,
    tool,
)
from tests.support.java import QUICK, dumping, sharing
from tests.support.timeouts import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: A small Java machine that starts quickly.
QUICK_START = ("-Xms64m", "-Xmx512m", *QUICK)
JAVA_FOLDER = Path(__file__).parent / "java"
#: A broker that finds this in its data directory trusts the logs to be whole.
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_SETTINGS = Path(__file__).parent / "server.properties"
_CLUSTER_ID = base64.urlsafe_b64encode(b"kafka-index-test").decode().rstrip("=")
_STARTED = "Kafka Server started"
# Blocks of ports that the system does not hand out, so that no connection takes one of them.
_BLOCKS = range(20_000, 32_000, 100)
_TAIL_CHARACTERS = 4000


class BrokerError(Exception):
    """A broker did not start or stop; the message ends with the tail of its log."""


@dataclass(frozen=True)
class BrokerFolders:
    """The folders of a broker."""

    root: Path

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.root / "data"

    @property
    def second(self) -> Path:
        """Another data directory, of a broker that has two."""
        return self.root / "data2"

    @property
    def metadata(self) -> Path:
        """The cluster's metadata log, which is not a topic."""
        return self.root / "metadata"

    def copy_to(self, root: Path) -> BrokerFolders:
        """Copy the folders, as a stopped broker left them."""
        copy = BrokerFolders(root)
        # Pages of zeros stay unwritten: a killed broker leaves 20 MiB of them for each partition.
        root.mkdir()
        command = ["cp", "-a", "--sparse=always", str(self.data), str(self.metadata), str(root)]
        subprocess.run(command, check=True)
        (copy.data / ".lock").unlink(missing_ok=True)
        return copy


def java(
    *arguments: str,
    classes: Path | None = None,
    options: tuple[str, ...] | None = None,
    version: str = DEFAULT_VERSION,
    level: str = "info",
) -> list[str]:
    """Command line of a Java program; its log goes to stderr.

    `arguments`: its class and what it is given. `classes`: a folder of classes beside Kafka's.
    `options`: of the Java machine, instead of the quick ones.
    """
    if options is None:
        options = (*QUICK_START, *sharing(_broker_classes(version)))
    path = class_path(version) if classes is None else f"{class_path(version)}:{classes}"
    logging = (
        f"-Dlevel={level}",
        f"-Dlog4j2.configurationFile={JAVA_FOLDER / 'log4j2.properties'}",
        f"-Dlog4j.configuration=file:{JAVA_FOLDER / 'log4j.properties'}",
    )
    return [tool("java"), "-XX:-UsePerfData", *options, *logging, "-cp", path, *arguments]


def _broker_classes(version: str) -> Path:
    """Archive of the classes that a broker loads until it is stopped; made when it is missing."""
    archive = target_of(version) / "broker-classes" / "broker.jsa"

    def run_broker() -> None:
        with tempfile.TemporaryDirectory() as folder:
            formatted = Broker(
                BrokerFolders(Path(folder)), java_options=QUICK_START, version=version
            ).home
            options = (*QUICK_START, *dumping(archive))
            with Broker(formatted, java_options=options, version=version):
                pass

    ensure_made(archive.parent, f"{class_path(version)}\n{java_version()}", run_broker)
    return archive


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that are free now, and that no other process draws here."""
    ports: list[int] = []
    _, own = _own_ports()
    for port in own:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


@cache
def _own_ports() -> tuple[socket.socket, Iterator[int]]:
    """A socket bound to the first port of a block, which keeps others off it; and the rest."""
    for first in random.sample(_BLOCKS, len(_BLOCKS)):
        mark = socket.socket()
        with contextlib.suppress(OSError):
            mark.bind(("127.0.0.1", first))
            return mark, cycle(range(first + 1, first + _BLOCKS.step))
        mark.close()
    raise BrokerError("all blocks of ports are taken")


class Broker:
    """A broker that runs while its context does, which ends with a clean stop.

    `home`: where its data is; made and formatted when it is not there. `node_id`: 1 is broker and
    controller; others are brokers only. `controller_port`: that of node 1, for others.
    `java_options`: of the Java machine, instead of the quick ones. `version`:
    Kafka's. `more_settings`: settings of this broker alone. `voters`: the controllers and their
    ports, where node 1 is not the only one. `features`: levels below the newest.
    """

    def __init__(
        self,
        home: BrokerFolders,
        node_id: int = 1,
        controller_port: int | None = None,
        java_options: tuple[str, ...] | None = None,
        version: str = DEFAULT_VERSION,
        more_settings: Mapping[str, str] | None = None,
        voters: Mapping[int, int] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self.home = home
        self._features = dict(features or {})
        self._more_settings = dict(more_settings or {})
        port, free = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self._voters = voters or {1: controller_port or free}
        self.controller_port = self._voters.get(node_id, self._voters[1])
        self._settings_file = home.root / "server.properties"
        self._java_options = java_options
        self._version = version
        self._log = home.root / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        is_new = not home.data.exists()
        home.root.mkdir(parents=True, exist_ok=True)
        self._settings_file.write_text(self._settings(node_id), encoding="utf-8")
        self._log.write_bytes(b"")
        if is_new:
            self._format()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
            error.add_note(f"The broker's log ends:\n{self._log_tail()}")

    def start(self) -> None:
        """Start, and wait until the broker logs that it has started.

        Raises `BrokerError` when it ends instead, or takes too long.
        """
        said_before = len(self.log_text())
        with self._log.open("ab") as out:
            command = self._java("kafka.Kafka", str(self._settings_file))
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        end = time.monotonic() + TIMEOUT_SECONDS
        while _STARTED not in self.log_text()[said_before:]:
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise BrokerError(f"the broker did not start:\n{self._log_tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop with SIGTERM; nothing happens when it does not run.

        Raises `BrokerError` when the broker does not stop cleanly.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None
        if not (self.home.data / CLEAN_SHUTDOWN).exists():
            raise BrokerError(f"the broker did not stop cleanly:\n{self._log_tail()}")

    def kill(self) -> None:
        """End with SIGKILL; nothing happens when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def bytes_read(self) -> int:
        """The bytes that the running process has read so far."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/io").read_text(encoding="ascii").splitlines()
        return int(lines[0].removeprefix("rchar: "))

    def log_text(self) -> str:
        """The log of the broker since this object was made."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _format(self) -> None:
        storage_tool = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID)
        levels = [
            word
            for name, level in self._features.items()
            for word in ("--feature", f"{name}={level}")
        ]
        command = self._java(*storage_tool, "-c", str(self._settings_file), *levels)
        with self._log.open("ab") as out:
            result = subprocess.run(command, check=False, stdout=out, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise BrokerError(f"the folders were not formatted:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log_text()[-_TAIL_CHARACTERS:]

    def _java(self, *arguments: str) -> list[str]:
        return java(*arguments, options=self._java_options, version=self._version)

    def _settings(self, node_id: int) -> str:
        listeners = f"PLAINTEXT://{self.bootstrap}"
        if node_id in self._voters:
            listeners += f",CONTROLLER://127.0.0.1:{self.controller_port}"
        own = {
            "node.id": str(node_id),
            "process.roles": "broker,controller" if node_id in self._voters else "broker",
            "listeners": listeners,
            "controller.quorum.voters": ",".join(
                f"{node}@127.0.0.1:{port}" for node, port in self._voters.items()
            ),
            "log.dirs": str(self.home.data),
            "metadata.log.dir": str(self.home.metadata),
            **self._more_settings,
        }
        lines = "".join(f"{key}={value}\n" for key, value in own.items())
        return f"{_SETTINGS.read_text(encoding='utf-8')}\n{lines}"
