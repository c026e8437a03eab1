"""The checkpoints at the root of a data directory of a broker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from kafka_index.errors import InputError
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.inputs import refuse_linked_out


@dataclass(slots=True)
class RootOffsets:
    """The offsets that the checkpoints at the root of a data directory have of its partitions.

    `offsets` has the entries of each checkpoint by its name. There is none for a partition of which
    nothing was noted.
    """

    path: str
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def offset(self, name: str, partition: TopicPartition) -> int | None:
        """Return the entry of a partition in a checkpoint."""
        return self.offsets.get(name, {}).get(partition)

    def log_start_offset(self, partition: TopicPartition) -> int | None:
        """Return the log start, which a broker notes only above the first segment's base offset."""
        return self.offset(LOG_START_CHECKPOINT, partition)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark."""
        return self.offset(REPLICATION_CHECKPOINT, partition)

    def recovery_point(self, partition: TopicPartition) -> int:
        """Return the recovery point, 0 without one."""
        return self.offset(RECOVERY_POINT_CHECKPOINT, partition) or 0

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """Return up to where a compacted log was cleaned."""
        return self.offset(CLEANER_CHECKPOINT, partition)

    def committed_end(self, partition: TopicPartition) -> int:
        """Return where a log ends at the earliest: what is before was committed, or flushed."""
        return max(self.high_watermark(partition) or 0, self.recovery_point(partition))


class LogDirectory(RootOffsets):
    """A data directory whose checkpoints are read when an entry of them is first asked for.

    A directory without checkpoints, such as the parent of a lone copied partition, is fine.
    """

    __slots__ = ("_is_there",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._is_there: dict[str, bool] = {}

    def offset(self, name: str, partition: TopicPartition) -> int | None:
        """Return the entry of a partition in a checkpoint.

        Raises `InputError` if the checkpoint cannot be read or is malformed.
        """
        self._read(name)
        return super().offset(name, partition)

    @property
    def has_high_watermarks(self) -> bool:
        """Whether there is a checkpoint of high watermarks at all."""
        return self._read(REPLICATION_CHECKPOINT)

    def _read(self, name: str) -> bool:
        """Read a checkpoint, once; return whether there is one."""
        if name not in self._is_there:
            path = os.path.join(self.path, name)
            text = read_checkpoint_text(path)
            if text is not None:
                self.offsets[name] = parse_offset_checkpoint(text, path=path)
            self._is_there[name] = text is not None
        return self._is_there[name]


def read_checkpoint_text(path: str) -> str | None:
    """Return the text of a checkpoint; None when there is no such file.

    Raises `InputError` if it cannot be read, or is not text.
    """
    if is_remote(path):
        return _read_remote(path)
    refuse_linked_out(path, any_name=True)
    try:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            # A named pipe would be waited for.
            raise InputError("the checkpoint is not a regular file", path=path)
        # As it is: the parser knows the line ends that Kafka knows.
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read the checkpoint: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error


def _read_remote(path: str) -> str | None:
    try:
        return store_of(path).read(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error


def _not_text(path: str, error: UnicodeDecodeError) -> InputError:
    return InputError("the checkpoint is not UTF-8 text", path=path, position_bytes=error.start)
