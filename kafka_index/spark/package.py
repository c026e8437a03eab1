"""The package as a zip, for executors whose Python does not have it.

The zip is reproducible and its name depends on the content: Spark keeps one copy per name, and
rejects a different file with a known name. It includes the machine code of the package, so that
executors with the driver's Python version load it too.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from weakref import WeakSet

from pyspark.sql import SparkSession

from kafka_index.spark.jobs import is_connect
from kafka_index.spark.session import runs_here

_PACKAGE = __name__.partition(".")[0]
_SUFFIXES = (".py", ".properties", ".typed", ".bin")
# The earliest time that a zip entry can have.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_DIGEST_DIGITS = 16
# Sessions whose executors have received the package.
_sent: WeakSet[SparkSession] = WeakSet()


def ship_package(session: SparkSession) -> None:
    """Send this package to the executors of a session, for all tasks that start later.

    Executors that have the package installed use the one sent. Modules of this package are imported
    from the zip, and its dependencies from the Python of the executors. Local executors need
    nothing; others are sent the package once.
    """
    if session in _sent or runs_here(session):
        return
    if is_connect(session):
        session.addArtifact(str(package_file()), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(package_file()))
    _sent.add(session)


@functools.cache
def package_file() -> Path:
    """Return the path of the zip, created once per process and removed at exit."""
    content = _content()
    folder = Path(tempfile.mkdtemp(prefix="kafka-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]
    path = folder / f"{_PACKAGE}-{digest}.zip"
    path.write_bytes(content)
    return path


def _content() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in _sources(files(_PACKAGE), _PACKAGE):
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.external_attr = 0o644 << 16
            # Stored, because compressed bytes depend on the version of zlib.
            archive.writestr(entry, source.read_bytes())
    return buffer.getvalue()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the package's files by name, from a folder or from a zip."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _sources(entry, name)
        elif name.endswith(_SUFFIXES):
            yield name, entry
