"""The sample of tiered storage that real brokers wrote, unpacked once a process."""

from __future__ import annotations

import csv
import gzip
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import pyarrow as pa

from kafka_index.core.fs.registry import configure_stores, storage_options, store_of
from kafka_index.core.fs.store import StorageOptions
from kafka_index.core.fs.uris import Layout, SegmentKey, parse_key, segment_path

SAMPLE = Path(__file__).parents[1] / "golden" / "tiered" / "sample.tar.zst"
SETTINGS = (
    "local",
    "aiven-plain",
    "aiven-zstd",
    "aiven-zstd-heuristic",
    "aiven-enc",
    "aiven-zstd-enc",
)
ENCRYPTED = "aiven-zstd-enc"

_numbers = count()
_folders: list[tempfile.TemporaryDirectory[str]] = []


@dataclass(frozen=True)
class Setting:
    """A broker's log directory and remote storage, and what its clients were answered."""

    path: Path

    @property
    def layout(self) -> Layout:
        return Layout.LOCAL if self.path.name == "local" else Layout.AIVEN

    @property
    def remote(self) -> str:
        return str(self.path / "remote")

    @property
    def data(self) -> str:
        return str(self.path / "data")

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Key pairs by id, as the options have them."""
        files = sorted((self.path / "keys").glob("*.private.pem"))
        return tuple((file.name.removesuffix(".private.pem"), str(file)) for file in files)

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file of the truth."""
        path = self.path / "truth" / name
        text = (
            gzip.decompress(path.read_bytes()).decode()
            if path.suffix == ".gz"
            else path.read_text()
        )
        return list(csv.DictReader(text.splitlines()))

    def segments(self) -> Iterator[SegmentKey]:
        """Yield the segments that have a log, whole or not."""
        for batch in store_of(self.remote).list_tree(self.remote):
            for name in batch["path"].to_pylist():
                parsed = parse_key(self.layout, name)
                if parsed is not None and parsed[1] == ".log":
                    yield parsed[0]

    def file(self, key: SegmentKey, suffix: str) -> str:
        """Return the path by which a file of a segment is opened."""
        return segment_path(self.layout, self.remote, key, suffix)


@cache
def sample() -> Path:
    """Return the folder of the sample; tests only read it."""
    folder = tempfile.TemporaryDirectory(prefix="tiered-sample-")
    _folders.append(folder)
    with (
        pa.CompressedInputStream(str(SAMPLE), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        archive.extractall(folder.name, filter="data")
    return Path(folder.name)


def setting(name: str) -> Setting:
    """Return a setting of the sample."""
    return Setting(sample() / name)


@contextmanager
def keys(pairs: tuple[tuple[str, str], ...]) -> Iterator[None]:
    """Open segments anew with these key pairs meanwhile."""
    before = storage_options()
    unused = (f"unused-{next(_numbers)}", "")
    configure_stores(StorageOptions(before.items, (*pairs, unused)))
    try:
        yield
    finally:
        configure_stores(before)
