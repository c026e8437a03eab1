"""Java that is quick to start rather than quick to run: tests start many, and let none run long.

Most of a start is the loading of classes. A JVM can leave loaded and verified classes in
an archive, which later ones map into memory (class data sharing). An archive that is missing, or
not of the same Java and the same jars, is passed over in silence.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: The classes of Spark's drivers and executors; `tests.support.spark_classes` makes it.
SPARK_CLASSES = Path(sys.prefix, "var", "cache", "spark-classes", "spark.jsa")


def dumping(archive: Path) -> tuple[str, ...]:
    """Return the options of a JVM that writes an archive when it ends."""
    return (f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable")


def sharing(archive: Path) -> tuple[str, ...]:
    """Return the options of a JVM that takes its classes from an archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


def spark_environment() -> dict[str, str]:
    """Return the variables of a process that starts JVMs of Spark."""
    options = shlex.join([*QUICK, *sharing(SPARK_CLASSES)])
    return {"JDK_JAVA_OPTIONS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
