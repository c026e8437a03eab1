"""One data directory of a broker, and the checkpoints at its root."""

from __future__ import annotations

import os
from functools import cached_property

from kafka_index.errors import InputError
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.names import (
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.inputs import refuse_linked_out


class LogDirectory:
    """The root checkpoints of a data directory, each read when first asked for.

    A directory without checkpoints (a lone copied partition's parent) is fine.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def log_start_offset(self, partition: TopicPartition) -> int | None:
        """Return the checkpointed log start offset; None without an entry.

        A broker writes one only where it is above the first segment's base offset. Raises
        `InputError` if the checkpoint cannot be read or is malformed.
        """
        offsets = self._log_start_offsets
        return None if offsets is None else offsets.get(partition)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the checkpointed high watermark; None without an entry.

        Raises `InputError` if the checkpoint cannot be read or is malformed.
        """
        offsets = self._high_watermarks
        return None if offsets is None else offsets.get(partition)

    def committed_end(self, partition: TopicPartition) -> int:
        """Return the earliest end of a log: all offsets before it were committed, or flushed.

        Raises `InputError` if a checkpoint cannot be read or is malformed.
        """
        flushed = (self._recovery_points or {}).get(partition, 0)
        return max(self.high_watermark(partition) or 0, flushed)

    @property
    def has_high_watermarks(self) -> bool:
        """Whether there is a checkpoint of high watermarks at all."""
        return self._high_watermarks is not None

    @cached_property
    def _log_start_offsets(self) -> dict[TopicPartition, int] | None:
        return self._read(LOG_START_CHECKPOINT)

    @cached_property
    def _high_watermarks(self) -> dict[TopicPartition, int] | None:
        return self._read(REPLICATION_CHECKPOINT)

    @cached_property
    def _recovery_points(self) -> dict[TopicPartition, int] | None:
        return self._read(RECOVERY_POINT_CHECKPOINT)

    def _read(self, name: str) -> dict[TopicPartition, int] | None:
        path = os.path.join(self.path, name)
        text = read_checkpoint_text(path)
        return None if text is None else parse_offset_checkpoint(text, path=path)


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
