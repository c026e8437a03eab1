"""The schemas of Kafka's messages against Kafka's own definitions, readers and writers."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.format.message_bytes import uuid_text
from kafka_index.core.format.message_schemas import STRUCT, Field, MessageSchema, Struct, Value
from kafka_index.core.format.messages import (
    CLUSTER_METADATA,
    CONSUMER_PROTOCOL,
    GROUP_RECORDS,
    KRAFT_CONTROL,
    REMOTE_LOG_METADATA,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)

from .campaign import random_cases
from .java_program import JavaProgram
from .kafka_jars import jars, needing_kafka

ALL = (
    *CLUSTER_METADATA,
    *KRAFT_CONTROL,
    *GROUP_RECORDS,
    *CONSUMER_PROTOCOL,
    *TRANSACTION_RECORDS,
    *SHARE_RECORDS,
    *REMOTE_LOG_METADATA,
)
#: Folders of definitions in Kafka's jars of which we have every message.
WHOLE = {
    "kafka-metadata": CLUSTER_METADATA,
    "kafka-group-coordinator": GROUP_RECORDS,
    "kafka-transaction-coordinator": TRANSACTION_RECORDS,
    "kafka-share-coordinator": SHARE_RECORDS,
    "kafka-storage": REMOTE_LOG_METADATA,
}
#: A file of its own format, which `kafka_index.core.log.state` reads.
NOT_A_RECORD = {"ProducerSnapshot"}

Ask = Callable[[MessageSchema, int, bytes], tuple[Any, bytes]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Ask]:
    """A function that asks `Messages.java` for JSON and bytes."""
    with JavaProgram("Messages") as program:

        def ask(schema: MessageSchema, version: int, data: bytes) -> tuple[Any, bytes]:
            answer = program.ask(schema.name, version, data.hex())
            assert not answer.startswith("error"), answer
            text, written = answer.split("\t")
            return json.loads(text), bytes.fromhex(written)

        yield ask


_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ELEMENTS: dict[str, st.SearchStrategy[Value]] = {
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": st.binary(max_size=12),
    "uuid": st.binary(min_size=16, max_size=16).map(uuid_text),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    **{
        name: st.one_of(
            st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), st.sampled_from([-1, 0, 1])
        )
        for name, bits in _BITS.items()
    },
}


def values(field: Field, version: int) -> st.SearchStrategy[Value]:
    element: st.SearchStrategy[Value] = (
        structs(field.fields, version) if field.type == STRUCT else ELEMENTS[field.type]
    )
    if field.is_array:
        # Java keeps some arrays as sets by one of their fields.
        element = st.lists(element, max_size=3, unique_by=repr).map(list)
    return st.none() | element if field.nullable else element


def structs(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[Value]:
    return st.fixed_dictionaries(
        {field.name: values(field, version) for field in fields if version in field.versions}
    ).map(Struct)


@st.composite
def messages(draw: st.DrawFn) -> tuple[MessageSchema, int, Struct]:
    schema = draw(st.sampled_from(ALL))
    version = draw(st.integers(schema.versions.lowest, schema.versions.highest))
    message = draw(structs(schema.fields, version))
    assert isinstance(message, Struct)
    return schema, version, message


@given(messages())
@random_cases(0.25)
def test_messages_are_read_and_written_as_by_kafka(
    kafka: Ask, generated: tuple[MessageSchema, int, Struct]
) -> None:
    schema, version, message = generated
    data = schema.encode(message, version)
    actual = schema.decode(data, version)

    expected, written = kafka(schema, version, data)

    assert written == data
    assert schema.as_json(actual, version) == expected


@pytest.mark.parametrize("jar", WHOLE)
def test_every_message_of_the_release_has_a_schema(jar: str) -> None:
    with needing_kafka():
        definitions = {found["name"]: found for found in _definitions(jar)}
    schemas = {schema.name: schema for schema in WHOLE[jar]}

    assert set(schemas) == set(definitions) - NOT_A_RECORD
    for name, schema in schemas.items():
        found = definitions[name]
        assert schema.api_key == found["apiKey"], name
        assert _range(found["validVersions"]) == (schema.versions.lowest, schema.versions.highest)


def _range(text: str) -> tuple[int, int]:
    lowest, _, highest = text.partition("-")
    return int(lowest), int(highest or lowest)


def _definitions(name: str) -> Iterator[dict[str, Any]]:
    (jar,) = [path for path in jars() if re.fullmatch(rf"{name}-[0-9.]+\.jar", path.name)]
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            if re.fullmatch(r"(common/)?(message|metadata)/\w+\.json", entry):
                text = archive.read(entry).decode()
                yield json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
