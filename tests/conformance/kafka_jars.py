"""Kafka's jars in several versions, for the reference program, brokers and Kafka's tools.

Each version is a Maven project, ``reference/kafka-VERSION/pom.xml``. Its jars are downloaded into
``reference/target/kafka-VERSION/lib``, which git ignores, and again when the project changes.
Downloading needs Maven, a JDK, and the network.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The versions that the product is compared with; the first is the reference.
VERSIONS = ("4.3.1", "3.9.1")
DEFAULT_VERSION, OLD_VERSION = VERSIONS
#: What a skipped test reports; the end of a run counts these.
KAFKA_DID_NOT_RUN = "Kafka's own code did not run"

_REFERENCE = Path(__file__).parent / "reference"
_COPY_JARS = "dependency:copy-dependencies"
_NEEDS = {
    "java": "a Java 17 runtime",
    "javac": "a JDK, 17 or newer (a runtime has no compiler)",
    "mvn": "Maven 3",
}


class KafkaUnavailable(Exception):  # noqa: N818 - a state of this machine, not a fault in the tests
    """Kafka's own code cannot run here; the message names what is missing."""


@contextmanager
def needing_kafka() -> Iterator[None]:
    """Skip the test if Kafka's own code cannot run, or fail it where Kafka is required."""
    try:
        yield
    except KafkaUnavailable as missing:
        if os.environ.get("CI") or os.environ.get("KAFKA_INDEX_REQUIRE_KAFKA") == "1":
            pytest.fail(f"Kafka is required here: {missing}", pytrace=False)
        pytest.skip(f"{KAFKA_DID_NOT_RUN}: {missing}")


def class_path(version: str = DEFAULT_VERSION) -> str:
    """Class path of all jars of a Kafka version: its broker, its tools, a binding for its logs.

    `version`: one of `VERSIONS`. Raises `KafkaUnavailable` when the jars have to be fetched and a
    tool is missing or Maven fails, without network for instance.
    """
    return os.pathsep.join(str(jar) for jar in jars(version))


def jars(version: str = DEFAULT_VERSION) -> tuple[Path, ...]:
    """All jars of a Kafka version, in the order of their names; fetched when they are missing."""
    return _fetched(project_of(version))


def spark_kafka_jars() -> tuple[Path, ...]:
    """The jars of Spark's own Kafka source, for a Spark that has the rest; fetched if missing.

    Raises `KafkaUnavailable` as for `class_path`.
    """
    return _fetched(_REFERENCE / "spark-kafka")


def tiered_storage_jar() -> Path:
    """The jar with LocalTieredStorage, for brokers of `DEFAULT_VERSION`; fetched if missing.

    Raises `KafkaUnavailable` as for `class_path`.
    """
    (jar,) = _fetched(_REFERENCE / "tiered-storage")
    return jar


def rest_catalog_jars() -> tuple[Path, ...]:
    """The jars of Iceberg's REST catalog server; fetched if missing, as for `class_path`."""
    return _fetched(_REFERENCE / "rest-catalog")


def lake_reader_jars() -> tuple[Path, ...]:
    """The jars of Iceberg and Delta for Spark 4.1; fetched if missing, as for `class_path`."""
    return _fetched(_REFERENCE / "lake-readers")


def _fetched(project: Path) -> tuple[Path, ...]:
    folder = _REFERENCE / "target" / project.name / "lib"
    ensure_made(folder, project_hash(project), lambda: fetch_jars(project, folder))
    return tuple(sorted(folder.glob("*.jar")))


def project_of(version: str) -> Path:
    """Folder of the Maven project that names a version's jars."""
    if version not in VERSIONS:
        raise ValueError(f"no Kafka {version} here, only {', '.join(VERSIONS)}")
    return _REFERENCE / f"kafka-{version}"


def target_of(version: str) -> Path:
    """Ignored folder of what is fetched and built for a version."""
    return _REFERENCE / "target" / project_of(version).name


def ensure_made(folder: Path, stamp: str, make: Callable[[], object]) -> None:
    """Call `make` to fill an empty `folder`, unless that was done before for the same `stamp`.

    Processes that come together wait for the first of them.
    """
    stamp_file = folder.with_name(f"{folder.name}.stamp")
    if _is(stamp_file, stamp):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if _is(stamp_file, stamp):
            return
        stamp_file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make()
        stamp_file.write_text(stamp, encoding="utf-8")


def tool(name: str) -> str:
    """Path of a tool: the JDK's from JAVA_HOME when it has it, anything else from PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    result = shutil.which(name)
    if result is None:
        raise KafkaUnavailable(
            f"{name} is neither in JAVA_HOME nor on PATH: install {_NEEDS[name]}"
        )
    return result


@functools.cache
def java_version() -> str:
    """The version text of `tool`'s Java."""
    command = [tool("java"), "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def fetch_jars(project: Path, folder: Path) -> None:
    """Copy the jars that a Maven project names, and theirs, into a folder."""
    maven = tool("mvn")
    # JAVA_HOME, where Maven looks for its own Java, may be a runtime that lacks what it needs.
    jdk = Path(tool("javac")).resolve().parent.parent
    result = subprocess.run(
        [maven, "-q", "-B", _COPY_JARS, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        cwd=project,
        env={**os.environ, "JAVA_HOME": str(jdk)},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise KafkaUnavailable(
            f"mvn could not fetch the jars of {project} (is there a network?):\n"
            f"{(result.stdout + result.stderr).strip()[-2000:]}"
        )


def project_hash(project: Path) -> str:
    """Hash of a Maven project: fetched jars are kept until it changes."""
    return hashlib.sha256((project / "pom.xml").read_bytes()).hexdigest()


def _is(stamp_file: Path, stamp: str) -> bool:
    return stamp_file.exists() and stamp_file.read_text(encoding="utf-8") == stamp


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
