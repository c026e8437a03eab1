"""Files of a data directory that follow from its logs: built, found, compared, taken away."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kafka_index.core.format.checkpoints import parse_leader_epoch_checkpoint
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_partition_directory,
)
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.builds import build_with_report
from tests.support.command_line import build_here

from .broker import CLEAN_SHUTDOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

#: How the names end of files that the product writes and a broker's have to equal.
COMPARED_SUFFIXES = (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
)

_TRANSIENT = ("*/*.deleted", "*/*.cleaned", "*/*.swap", "*-delete")


def build(data: Path, config: Path, output: Path | None = None) -> list[dict[str, Any]]:
    """Build into a folder, or in place; return the rows of the report."""
    target = ("--in-place",) if output is None else ("--output", output)
    done, rows = build_with_report(
        build_here, config.parent, "--input", data, *target, "--config", config
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return rows


def partition_files(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files of live partitions, relative to a data directory or a build's output, in order."""
    for path in sorted(root.glob("*/*")):
        if path.name.endswith(suffixes) and parse_partition_directory(path.parent.name):
            yield path.relative_to(root)


def nothing(_: Path) -> bool:
    """Exclude no file from a comparison."""
    return False


def differences(brokers: Path, ours: Path, excluded: Callable[[Path], bool] = nothing) -> list[str]:
    """Compare a broker's data directory with a build's output, byte for byte.

    A broker that leads begins an epoch at the log's end. As long as no record is of that epoch, no
    log shows it: such an epoch is left out of the broker's checkpoint here.

    `brokers`, `ours`: the two. `excluded`: which files are not compared, by their names relative to
    the data directory. Returns a line for each file that only one has, or that has other bytes.
    """
    names = {*partition_files(brokers, COMPARED_SUFFIXES)}
    names |= {*partition_files(ours, COMPARED_SUFFIXES)}
    return [
        f"{name}: broker {_told(brokers / name)}, ours {_told(ours / name)}"
        for name in sorted(names)
        if not excluded(name) and _of_broker(brokers / name) != _content(ours / name)
    ]


def epochs_with_records(checkpoint: Path) -> bytes:
    """A broker's ``leader-epoch-checkpoint`` without the epoch that begins at the log's end."""
    entries = parse_leader_epoch_checkpoint(checkpoint.read_text(encoding="utf-8"))
    with PartitionLog.open(checkpoint.parent) as log:
        end = log.log_end_offset
    lines = [
        f"{entry.epoch} {entry.start_offset}\n" for entry in entries if entry.start_offset < end
    ]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def segments_by_partition(data: Path) -> Counter[str]:
    """The number of segments of each partition."""
    return Counter(name.parent.name for name in partition_files(data, (LOG_SUFFIX,)))


def last_logs(data: Path) -> set[Path]:
    """The log of each partition that is appended to, relative to the data directory."""
    last = {name.parent: name for name in partition_files(data, (LOG_SUFFIX,))}
    return set(last.values())


def changed_logs(before: Path, after: Path) -> set[Path]:
    """Logs that a broker added to, cut, made or removed; a cut tail of zeros does not count.

    Paths are relative to the data directory.
    """
    names = {*partition_files(before, (LOG_SUFFIX,)), *partition_files(after, (LOG_SUFFIX,))}
    return {name for name in names if not _is_same_log(before / name, after / name)}


def remove_all_but_logs(data: Path) -> None:
    """Take away what a broker can find again in the logs, and its word that they are whole."""
    remove_index_files(data)
    for word in (RECOVERY_POINT_CHECKPOINT, CLEAN_SHUTDOWN):
        (data / word).unlink(missing_ok=True)


def remove_index_files(data: Path) -> None:
    """Take away the files that the product writes."""
    for name in [*partition_files(data, COMPARED_SUFFIXES)]:
        (data / name).unlink()


def is_cleaned(data: Path, partitions: set[str]) -> bool:
    """Whether the cleaner is through with all but last segments, and nothing is left to delete."""
    checkpoint = data / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return False
    cleaned = {}
    for line in checkpoint.read_text(encoding="utf-8").splitlines()[2:]:
        topic, partition, offset = line.split(" ")
        cleaned[f"{topic}-{partition}"] = int(offset)
    return all(cleaned.get(name, 0) == _last_base_offset(data / name) for name in partitions) and (
        not any(any(data.glob(pattern)) for pattern in _TRANSIENT)
    )


def _last_base_offset(partition: Path) -> int:
    return max(int(path.stem) for path in partition.glob(f"*{LOG_SUFFIX}"))


def _is_same_log(before: Path, after: Path) -> bool:
    if not (before.exists() and after.exists()):
        return False
    was, now = before.read_bytes(), after.read_bytes()
    return was.startswith(now) and not was[len(now) :].strip(b"\0")


def _of_broker(path: Path) -> bytes | None:
    if path.name == LEADER_EPOCH_CHECKPOINT and path.exists():
        return epochs_with_records(path)
    return _content(path)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _told(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes" if path.exists() else "none"
