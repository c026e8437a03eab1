"""Building of the Java judge with Maven, when its sources differ from what was last built.

Building needs ``javac`` and ``mvn``, and the network the first time; running needs ``java`` only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parent / "judge"

_TARGET = PROJECT / "target"
_STAMP = _TARGET / "judge.stamp"
_MAVEN_GOALS = ("package", "dependency:copy-dependencies")
_NEEDS = {
    "java": "a Java 17 runtime",
    "javac": "a JDK, 17 or newer (a runtime has no compiler)",
    "mvn": "Maven 3",
}


class JudgeUnavailable(Exception):  # noqa: N818 - a state of this machine, not a fault in the tests
    """The judge cannot be built or started here; the message names what is missing."""


def class_path() -> str:
    """Class path of the built judge."""
    return os.pathsep.join((str(_TARGET / "judge.jar"), str(_TARGET / "dependency" / "*")))


def ensure_judge() -> None:
    """Build the judge unless ``target/`` holds the build of exactly these sources.

    Raises
    ------
    JudgeUnavailable
        When a tool is missing or Maven fails, without network for instance.
    """
    tool("java")
    stamp = _source_hash()
    if _built(stamp):
        return
    # JAVA_HOME, where Maven looks for the compiler, may be a runtime without one.
    jdk = Path(tool("javac")).resolve().parent.parent
    maven = tool("mvn")
    _TARGET.mkdir(exist_ok=True)
    # Test processes that start together must not build into one another's target.
    with (_TARGET / "judge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _built(stamp):
            return
        # Else the jars of a former Kafka version would stay on the class path.
        shutil.rmtree(_TARGET / "dependency", ignore_errors=True)
        done = subprocess.run(
            [maven, "-q", "-B", *_MAVEN_GOALS],
            cwd=PROJECT,
            env={**os.environ, "JAVA_HOME": str(jdk)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise JudgeUnavailable(
                f"mvn failed in {PROJECT}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
            )
        _STAMP.write_text(stamp)


def _built(stamp: str) -> bool:
    return (_TARGET / "judge.jar").exists() and _STAMP.exists() and _STAMP.read_text() == stamp


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in (PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*.java"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def tool(name: str) -> str:
    """Path of a tool: the JDK's from JAVA_HOME when it has it, anything else from PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise JudgeUnavailable(
            f"{name} is neither in JAVA_HOME nor on PATH: install {_NEEDS[name]}"
        )
    return found
