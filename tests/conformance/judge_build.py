"""Building of the Java judge for one Kafka version, when its sources differ from what was built.

``judge/src/shared`` holds what all versions share, in the names of the default one, and
``judge/src/kafka-VERSION`` what is for that version alone. Building needs ``javac``, running
``java`` only; `kafka_jars` brings the jars for both.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from .kafka_jars import (
    DEFAULT_VERSION,
    JudgeUnavailable,
    ensure_made,
    jars,
    project_of,
    target_of,
    tool,
)

__all__ = ["PROJECT", "JudgeUnavailable", "class_path", "ensure_judge", "tool"]

#: The Maven project that names the default version of Kafka.
PROJECT = project_of(DEFAULT_VERSION)

_JUDGE = Path(__file__).parent / "judge"
_SOURCES = _JUDGE / "src"
_RELEASE = 17
#: Where classes of the shared sources' names live in an older version.
_FORMER_NAMES = {
    "3.9.1": {
        "org.apache.kafka.common.record.internal": "org.apache.kafka.common.record",
        "org.apache.kafka.server.storage.log.FetchIsolation": (
            "org.apache.kafka.storage.internals.log.FetchIsolation"
        ),
    }
}


def class_path(version: str = DEFAULT_VERSION) -> str:
    """Class path of the built judge of a Kafka version."""
    return os.pathsep.join(map(str, (_classes(version), *jars(version))))


def quiet_options(version: str = DEFAULT_VERSION) -> tuple[str, ...]:
    """The settings that keep Kafka's log lines out of the judge's way."""
    if version == DEFAULT_VERSION:
        return ("-Dlog4j2.level=OFF",)
    return (f"-Dlog4j.configuration={(_JUDGE / 'log4j.properties').as_uri()}",)


def ensure_judge(version: str = DEFAULT_VERSION) -> None:
    """Build the judge unless its folder holds the build of exactly these sources and jars.

    Raises `JudgeUnavailable` when a tool or the jars are missing, or the compiler refuses.
    """
    tool("java")
    sources = _sources(version)
    classes = _classes(version)
    digest = hashlib.sha256((project_of(version) / "pom.xml").read_bytes())
    for name, text in sources.items():
        digest.update(f"{name}\0{text}\0".encode())
    ensure_made(classes, digest.hexdigest(), lambda: _compile(version, sources, classes))


def _sources(version: str) -> dict[str, str]:
    """Text of each source file, in the version's own names."""
    sources = {}
    for folder in (_SOURCES / "shared", _SOURCES / project_of(version).name):
        for path in sorted(folder.glob("*.java")):
            text = path.read_text(encoding="utf-8")
            for name, former in _FORMER_NAMES.get(version, {}).items():
                text = text.replace(name, former)
            sources[path.name] = text
    return sources


def _compile(version: str, sources: dict[str, str], classes: Path) -> None:
    compiler = tool("javac")
    folder = classes.with_name("sources")
    folder.mkdir(exist_ok=True)
    for former in folder.glob("*.java"):
        former.unlink()
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            compiler,
            f"--release={_RELEASE}",
            "-proc:none",
            "-nowarn",
            "-d",
            str(classes),
            "-cp",
            os.pathsep.join(map(str, jars(version))),
            *(str(folder / name) for name in sources),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise JudgeUnavailable(
            f"javac refused the judge of Kafka {version}:\n"
            f"{(done.stdout + done.stderr).strip()[-2000:]}"
        )


def _classes(version: str) -> Path:
    return target_of(version) / "classes"
