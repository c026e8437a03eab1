"""Records of Kafka's own topics in a dump: what their bytes mean, as ``kafka-dump-log`` has it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from kafka_index.errors import CorruptRecordError
from kafka_index.layout.names import parse_partition_directory
from kafka_index.metadata.decoding import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    GROUP_CODEC,
    METADATA_CODEC,
    REMOTE_LOG_CODEC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_CODEC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_CODEC,
    TRANSACTION_STATE_TOPIC,
    CoordinatorCodec,
    has_secret,
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A record, decoded.

    Parameters
    ----------
    key, value : str or None
        JSON; None where there is none.
    error : str or None
        Why it is not decoded.
    hides_value : bool
        Whether the bytes of the value must not be shown.
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
    return _DECODERS.get(topic)


def _decode_metadata(_key: bytes | None, value: bytes | None) -> Decoded:
    try:
        record = METADATA_CODEC.decode(value)
    except CorruptRecordError as error:
        # It may be a credential that a later release writes.
        return Decoded(error=str(error), hides_value=True)
    text = json.dumps(METADATA_CODEC.as_json(record))
    return Decoded(value=text, hides_value=has_secret(record))


def _decode_remote(_key: bytes | None, value: bytes | None) -> Decoded:
    try:
        return Decoded(value=json.dumps(REMOTE_LOG_CODEC.as_json(REMOTE_LOG_CODEC.decode(value))))
    except CorruptRecordError as error:
        return Decoded(error=str(error))


def _coordinator_decoder(codec: CoordinatorCodec) -> Decode:
    def decode(key: bytes | None, value: bytes | None) -> Decoded:
        try:
            key_json, value_json = codec.as_json(codec.decode(key, value))
        except CorruptRecordError as error:
            return Decoded(error=str(error))
        text = None if value_json is None else json.dumps(value_json)
        return Decoded(json.dumps(key_json), text)

    return decode


_DECODERS: dict[str, Decode] = {
    CLUSTER_METADATA_TOPIC: _decode_metadata,
    REMOTE_LOG_METADATA_TOPIC: _decode_remote,
    CONSUMER_OFFSETS_TOPIC: _coordinator_decoder(GROUP_CODEC),
    TRANSACTION_STATE_TOPIC: _coordinator_decoder(TRANSACTION_CODEC),
    SHARE_GROUP_STATE_TOPIC: _coordinator_decoder(SHARE_CODEC),
}
