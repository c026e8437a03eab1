"""Records of Kafka's own topics, decoded to the JSON of ``kafka-dump-log``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.errors import CorruptRecordError
from kafka_index.layout.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_PREFIX,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    parse_partition_directory,
)

if TYPE_CHECKING:
    from kafka_index.metadata.decoding import CoordinatorCodec, ValueCodec


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
    """Return the decoder of the records of a log; None where they are not Kafka's own."""
    partition = parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return None if partition is None else decoder_of_topic(partition.topic)


def decoder_of_topic(topic: str) -> Decode | None:
    """Return the decoder of the records of a topic; None where they are not Kafka's own."""
    if not topic.startswith(INTERNAL_PREFIX):
        return None
    from kafka_index.metadata import decoding  # noqa: PLC0415, slow to import

    codecs = {
        CONSUMER_OFFSETS_TOPIC: decoding.GROUP_CODEC,
        TRANSACTION_STATE_TOPIC: decoding.TRANSACTION_CODEC,
        SHARE_GROUP_STATE_TOPIC: decoding.SHARE_CODEC,
    }
    if topic in codecs:
        return partial(_decode_state, codecs[topic])
    return {
        CLUSTER_METADATA_TOPIC: partial(_decode_metadata, decoding.METADATA_CODEC),
        REMOTE_LOG_METADATA_TOPIC: partial(_decode_remote, decoding.REMOTE_LOG_CODEC),
    }.get(topic)


def _decode_metadata(codec: ValueCodec, _key: bytes | None, value: bytes | None) -> Decoded:
    from kafka_index.metadata.decoding import has_secret  # noqa: PLC0415, slow to import

    try:
        record = codec.decode(value)
    except CorruptRecordError as error:
        # It may be a credential that a later release writes.
        return Decoded(error=str(error), hides_value=True)
    return Decoded(value=json.dumps(codec.as_json(record)), hides_value=has_secret(record))


def _decode_remote(codec: ValueCodec, _key: bytes | None, value: bytes | None) -> Decoded:
    try:
        return Decoded(value=json.dumps(codec.as_json(codec.decode(value))))
    except CorruptRecordError as error:
        return Decoded(error=str(error))


def _decode_state(codec: CoordinatorCodec, key: bytes | None, value: bytes | None) -> Decoded:
    try:
        key_json, value_json = codec.as_json(codec.decode(key, value))
    except CorruptRecordError as error:
        return Decoded(error=str(error))
    return Decoded(json.dumps(key_json), None if value_json is None else json.dumps(value_json))
