"""Kafka's messages by their schemas; `tests/conformance/test_messages.py` asks Kafka's classes."""

from __future__ import annotations

import pytest

from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.message_bytes import (
    MessageReader,
    MessageWriter,
    uuid_bytes,
    uuid_text,
)
from kafka_index.core.format.message_schemas import Struct, parse_schemas
from kafka_index.core.format.messages import GROUP_RECORDS
from kafka_index.core.format.strings import ZERO_UUID

(POINT,) = parse_schemas(
    """
Point 7 versions=0-2 flexible=1+
    name string
    x int16
    ids []int32 1+
    places [] nullable
        at int64
    note string 1+ nullable tag=0 default=null
    home {} 2+ nullable tag=3 default=null
        port uint16
    """
)


def test_non_flexible_message_version_has_fixed_lengths() -> None:
    data = POINT.encode({"name": "ab", "x": -2, "places": None}, 0)

    assert data == b"\x00\x02ab" + b"\xff\xfe" + b"\xff\xff\xff\xff"


def test_flexible_message_version_has_compact_lengths_and_tagged_fields() -> None:
    data = POINT.encode({"name": "ab", "x": 1, "ids": [5], "places": [], "note": "z"}, 1)

    assert (
        data == b"\x03ab" + b"\x00\x01" + b"\x02\x00\x00\x00\x05" + b"\x01" + b"\x01\x00\x02\x02z"
    )


def test_every_kind_of_message_field_is_read_back() -> None:
    point = Struct(
        name="ä",
        x=3,
        ids=[1, 2],
        places=[Struct(at=2**40)],
        note=None,
        home=Struct(port=65535),
    )

    assert POINT.decode(POINT.encode(point, 2), 2) == point


def test_field_that_a_version_lacks_has_its_default() -> None:
    point = POINT.decode(POINT.encode({"name": "a", "x": 1, "places": None}, 0), 0)

    assert (point["ids"], point["note"], point["home"], point["places"]) == ([], None, None, None)


def test_unknown_tagged_field_is_skipped() -> None:
    later = b"\x02a" + b"\x00\x01" + b"\x01" + b"\x01" + b"\x01\x09\x03xyz"

    assert POINT.decode(later, 1)["name"] == "a"


def test_version_that_does_not_exist_is_rejected() -> None:
    with pytest.raises(CorruptRecordError, match=r"unknown version of Point .*0 to 2.*3"):
        POINT.decode(b"", 3)


def test_truncated_message_is_rejected() -> None:
    data = POINT.encode({"name": "ab", "x": 1, "places": []}, 0)

    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            POINT.decode(data[:size], 0)


def test_array_longer_than_its_message_is_rejected_before_allocation() -> None:
    with pytest.raises(CorruptRecordError, match="more elements than remaining bytes"):
        POINT.decode(b"\x00\x00" + b"\x00\x01" + b"\x7f\xff\xff\xff", 0)


def test_null_in_a_field_that_is_not_nullable_is_rejected() -> None:
    with pytest.raises(CorruptRecordError, match="name is null"):
        POINT.decode(b"\xff\xff" + b"\x00\x01" + b"\xff\xff\xff\xff", 0)


def test_message_as_json_has_the_fields_of_its_version() -> None:
    point = POINT.decode(POINT.encode({"name": "a", "x": 1, "places": None}, 1), 1)

    assert POINT.as_json(point, 0) == {"name": "a", "x": 1, "places": None}
    assert POINT.as_json(point, 1) == {"name": "a", "x": 1, "ids": [], "places": None}


def test_uuids_are_printed_as_kafka_prints_them() -> None:
    assert uuid_text(bytes(16)) == ZERO_UUID
    assert uuid_bytes(uuid_text(bytes(range(240, 256)))) == bytes(range(240, 256))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**28, 2**32 - 1])
def test_unsigned_varints_are_decoded(value: int) -> None:
    writer = MessageWriter()
    writer.unsigned_varint(value)
    reader = MessageReader(bytes(writer.data))

    assert (reader.unsigned_varint(), reader.remaining) == (value, 0)


def test_unterminated_varint_is_rejected() -> None:
    with pytest.raises(CorruptRecordError, match="too long"):
        MessageReader(b"\xff" * 9).unsigned_varint()


def test_every_coordinator_value_schema_has_a_key_schema() -> None:
    names = {schema.name for schema in GROUP_RECORDS}

    assert {name.removesuffix("Value") + "Key" for name in names if name.endswith("Value")} == {
        name for name in names if name.endswith("Key")
    }
