"""Records of Kafka's own topics in a dump: what their bytes mean, as ``kafka-dump-log`` has it."""

from __future__ import annotations

import json

from kafka_index.cli.decoded_records import Decode, Decoded
from kafka_index.errors import CorruptRecordError
from kafka_index.layout.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.metadata.decoding import (
    GROUP_CODEC,
    METADATA_CODEC,
    REMOTE_LOG_CODEC,
    SHARE_CODEC,
    TRANSACTION_CODEC,
    CoordinatorCodec,
    has_secret,
)


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


#: What decodes the records of each of them.
DECODERS: dict[str, Decode] = {
    CLUSTER_METADATA_TOPIC: _decode_metadata,
    REMOTE_LOG_METADATA_TOPIC: _decode_remote,
    CONSUMER_OFFSETS_TOPIC: _coordinator_decoder(GROUP_CODEC),
    TRANSACTION_STATE_TOPIC: _coordinator_decoder(TRANSACTION_CODEC),
    SHARE_GROUP_STATE_TOPIC: _coordinator_decoder(SHARE_CODEC),
}
