"""The text of a record that Kafka itself has written, and its decoder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from kafka_index.layout.names import INTERNAL_PREFIX, parse_partition_directory


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded record: key and value as JSON, None for none, or the error.

    `hides_value`: the bytes of the value must not be shown.
    """

    key: str | None = None
    value: str | None = None
    error: str | None = None
    hides_value: bool = False


#: Decodes key and value of a record that is not a control record.
Decode = Callable[[bytes | None, bytes | None], Decoded]


def decoder_of(path: str) -> Decode | None:
    """Return what decodes the records of a log; None where they are not Kafka's own."""
    partition = parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return None if partition is None else decoder_of_topic(partition.topic)


def decoder_of_topic(topic: str) -> Decode | None:
    """Return what decodes the records of a topic; None where they are not Kafka's own."""
    if not topic.startswith(INTERNAL_PREFIX):
        return None
    from kafka_index.cli.dump_metadata import DECODERS  # noqa: PLC0415, slow to import

    return DECODERS.get(topic)
