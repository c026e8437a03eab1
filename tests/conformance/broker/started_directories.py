"""Random directories after Kafka's own start, and the records that it lost."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import google_crc32c

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.format.checkpoints import java_lines

# Java's \s.
_ENTRY = re.compile(r"(\S+)[ \t\v\f]+(\d+)[ \t\v\f]+([+-]?\d+)")
_HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True, slots=True)
class Started:
    """The reference program's answer: why a broker exits, or what it serves of each partition."""

    starts: bool
    reason: str
    partitions: dict[str, str]

    @classmethod
    def of(cls, reply: list[str]) -> Self:
        """Read the fields of the answer."""
        if reply[0] == "exits":
            return cls(starts=False, reason=" ".join(reply[1:]), partitions={})
        pairs = (field.partition(" ") for field in reply[1:] if field)
        return cls(starts=True, reason="", partitions={name: text for name, _, text in pairs})

    def faults(
        self,
        expected: Mapping[str, set[int]],
        starts: Mapping[str, int],
        intact: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the lost, hidden and reappearing records, by partition.

        `intact` has what is served of the partitions while nothing is wrong: no others are then to
        be served as committed, and times are to be those of the same offsets.
        """
        faults = {}
        for name, text in self.partitions.items():
            kind, *words = text.split(" ")
            wanted = expected.get(name, set())
            if kind == "unserved":
                faults[name] = text
                continue
            if kind == "missing":
                faults[name] = "missing"
                continue
            served = offsets_of(words[2])
            if wanted - served:
                lost = sorted(wanted - served)
                faults[name] = f"{len(lost)} lost, {lost[0]} to {lost[-1]}: {text[:80]}"
            elif min(served, default=0) < starts.get(name, 0) and served:
                faults[name] = f"come back: {text[:80]}"
            elif len(words) > 6:
                faults[name] = f"fails: {text[-80:]}"
            elif intact is not None:
                committed, (right, _, times) = offsets_of(words[3]), _committed(intact[name])
                missing = (right & wanted) - committed - set(range(int(words[4]), max(right) + 1))
                listing = list(map(int, words[5].split(",")))
                unequal = [
                    (one, other)
                    for one, other in zip(times, listing, strict=True)
                    if one != other and one in wanted
                ]
                if committed - right:
                    faults[name] = f"aborted: {sorted(committed - right)[:5]}"
                elif missing:
                    faults[name] = f"not committed: {sorted(missing)[:5]}"
                elif unequal:
                    faults[name] = f"times lead to {unequal[:3]}"
        return faults


def _committed(text: str) -> tuple[set[int], int, list[int]]:
    """Return the committed offsets, the last stable one, and those of times."""
    _, _, _, _, committed, stable, times = text.split(" ")
    return offsets_of(committed), int(stable), list(map(int, times.split(",")))


def topic_fields(cluster: ClusterImage, node_id: int) -> list[str]:
    """Return the metadata of one broker as the reference program takes it for a start."""
    return [
        f"{topic.name}={topic_id}={len(topic.partitions)}={node_id}="
        + ",".join(
            topic.partitions[partition].directories[0] for partition in sorted(topic.partitions)
        )
        for topic_id, topic in cluster.topics.items()
    ]


def visible(
    directories: Iterable[Path], written: Mapping[str, set[int]], starts: Mapping[str, int]
) -> dict[str, set[int]]:
    """Return which of the written records are there, sound, and not before a log start."""
    directories = list(directories)
    there = readable(directories)
    starts = dict(starts)
    for directory in directories:
        path = directory / "log-start-offset-checkpoint"
        data = path.read_bytes() if path.is_file() else b""
        for line in java_lines(data.decode(errors="replace"))[2:]:
            entry = _ENTRY.fullmatch(line)
            name = f"{entry[1]}-{int(entry[2])}" if entry else ""
            if entry and (directory / name).is_dir():
                starts[name] = max(starts.get(name, 0), int(entry[3]))
    return {
        name: {
            offset for offset in offsets & there.get(name, set()) if offset >= starts.get(name, 0)
        }
        for name, offsets in written.items()
    }


def offsets_of(text: str) -> set[int]:
    """Return the offsets in ``A..B,C..D``."""
    offsets: set[int] = set()
    for one in text.split(",") if text != "-" else ():
        first, _, last = one.partition("..")
        offsets.update(range(int(first), int(last) + 1))
    return offsets


def readable(directories: Iterable[Path]) -> dict[str, set[int]]:
    """Return the offsets of records in sound batches, by the name of the partition directory."""
    result: dict[str, set[int]] = {}
    for directory in directories:
        for folder in directory.iterdir():
            if folder.is_dir():
                offsets = result.setdefault(folder.name, set())
                for path in folder.glob("*.log*"):
                    if path.is_file() and path.suffix in (".log", ".swap"):
                        offsets |= _offsets_in(path.read_bytes())
    return result


def times_of(directories: Iterable[Path], count: int = 12) -> list[int]:
    """Return some of the largest timestamps of batches, in ms."""
    times: set[int] = set()
    for directory in directories:
        for path in directory.glob("*/*.log"):
            data, at = path.read_bytes(), 0
            while at + _HEADER.size <= len(data):
                header = _HEADER.unpack_from(data, at)
                times.add(header[8])
                at += 12 + header[1]
    result = sorted(times)
    return result[:: max(len(result) // count, 1)]


def _offsets_in(data: bytes) -> set[int]:
    offsets: set[int] = set()
    at = 0
    while at + _HEADER.size <= len(data):
        base, length, _, magic, crc, attributes, last, *_rest = _HEADER.unpack_from(data, at)
        end = at + 12 + length
        if magic != 2 or length < _HEADER.size - 12 or end > len(data):
            break
        if google_crc32c.value(data[at + 21 : end]) == crc and not attributes & 32:
            offsets.update(range(base, base + last + 1))
        at = end
    return offsets
