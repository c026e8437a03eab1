"""Random Protobuf files with messages, and the comparison with upb."""

from __future__ import annotations

import datetime as dt
import math
from random import Random
from typing import Any

from google.protobuf import message_factory

_SCALARS = (
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "float", "double", "bool", "string", "bytes",
)  # fmt: skip
_KEYS = ("int32", "int64", "uint32", "sint64", "bool", "string", "fixed64")
_KNOWN = (
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
    "google.protobuf.Int64Value",
    "google.protobuf.StringValue",
    "google.protobuf.BoolValue",
)
_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(microseconds=1)
_TEXTS = ("", "plain", "Grüße, 世界 🚀", "nul\0inside", "x" * 70)
_HEADER = """syntax = "{syntax}"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
"""


def random_file(random: Random) -> str:
    """The text of a file whose first message is M0; each may contain those after it."""
    syntax = random.choice(("proto3", "proto3", "proto2"))
    count = random.randint(1, 4)
    text = _HEADER.format(syntax=syntax)
    text += "enum E { ZERO = 0; ONE = 1; NEGATIVE = -3; FAR = 1000000; }\n"
    for number in range(count):
        inner = [f"M{later}" for later in range(number + 1, count)]
        text += f"message M{number} {{\n{_fields(random, inner, syntax)}}}\n"
    return text


def _fields(random: Random, inner: list[str], syntax: str) -> str:
    lines, numbers = [], random.sample(range(1, 40), random.randint(1, 9))
    label = "optional " if syntax == "proto2" else ""
    for number in numbers:
        kind = random.choice((*_SCALARS, *_KNOWN, "E", *inner, *inner, *inner))
        name = f"a_field{number}"
        match random.randrange(6):
            case 0:
                lines.append(f"repeated {kind} {name} = {number};")
            case 1:
                lines.append(f"map<{random.choice(_KEYS)}, {kind}> {name} = {number};")
            case 2:
                lines.append(
                    f"oneof o{number} {{ {kind} {name} = {number};"
                    f" string b{number} = {number + 100}; }}"
                )
            case 3:
                lines.append(f"optional {kind} {name} = {number};")
            case _:
                lines.append(f"{label}{kind} {name} = {number};")
    return "".join(f"  {line}\n" for line in lines)


def message_class(message: Any) -> Any:
    """The class of upb for a `ProtobufMessage`."""
    return message_factory.GetMessageClass(message._descriptor)


def fill(random: Random, message: Any, depth: int = 0) -> Any:
    """Set some fields of a message of upb."""
    for field_ in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        if field_.message_type is not None and field_.message_type.GetOptions().map_entry:
            _fill_map(random, getattr(message, field_.name), field_.message_type, depth)
        elif field_.is_repeated:
            for _ in range(random.randrange(4)):
                if field_.message_type is None:
                    getattr(message, field_.name).append(_scalar(random, field_))
                else:
                    _fill_known(random, getattr(message, field_.name).add(), depth)
        elif field_.message_type is None:
            setattr(message, field_.name, _scalar(random, field_))
        else:
            getattr(message, field_.name).SetInParent()
            _fill_known(random, getattr(message, field_.name), depth)
    return message


def _fill_map(random: Random, found: Any, entry: Any, depth: int) -> None:
    for _ in range(random.randrange(3)):
        key = _scalar(random, entry.fields_by_name["key"])
        value = entry.fields_by_name["value"]
        if value.message_type is None:
            found[key] = _scalar(random, value)
        else:
            _fill_known(random, found[key], depth)


def _fill_known(random: Random, message: Any, depth: int) -> None:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds = random.randrange(-(10**9), 10**10)
        message.nanos = random.randrange(10**9)
    else:
        fill(random, message, depth + 1)


def _scalar(random: Random, one: Any) -> Any:  # noqa: PLR0911
    if one.enum_type is not None:
        closed = one.enum_type.file.name and one.enum_type.is_closed
        return random.choice((0, 1, -3, 1000000) if closed else (0, 1, -3, 77))
    match one.cpp_type:
        case one.CPPTYPE_INT32:
            return random.choice((0, -1, 2**31 - 1, -(2**31)))
        case one.CPPTYPE_INT64:
            return random.choice((0, -1, 2**63 - 1, -(2**63), random.randrange(10**12)))
        case one.CPPTYPE_UINT32:
            return random.choice((0, 2**32 - 1))
        case one.CPPTYPE_UINT64:
            return random.choice((0, 2**64 - 1))
        case one.CPPTYPE_BOOL:
            return random.random() < 0.5
        case one.CPPTYPE_FLOAT | one.CPPTYPE_DOUBLE:
            return random.choice((0.0, 0.5, -1024.0, math.inf))
    return random.randbytes(5) if one.type == one.TYPE_BYTES else random.choice(_TEXTS)


def is_equal(message: Any, found: Any) -> bool:  # noqa: PLR0911
    """Whether a value of Arrow has the fields of a message of upb."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        return bool((found - _EPOCH) // _MICROSECOND == _micros(message))
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return bool(message.value == found)
    if not message.DESCRIPTOR.fields:
        return bool(found == "{}")
    for field_ in message.DESCRIPTOR.fields:
        value, own = getattr(message, field_.name), found[field_.name]
        if field_.message_type is not None and field_.message_type.GetOptions().map_entry:
            kind = field_.message_type.fields_by_name["value"]
            pairs = dict(own)
            if pairs.keys() != set(value) or not all(
                _is_equal_scalar(kind, value[key], pairs[key]) for key in pairs
            ):
                return False
        elif field_.is_repeated:
            if len(value) != len(own) or not all(
                _is_equal_scalar(field_, *pair) for pair in zip(value, own, strict=True)
            ):
                return False
        elif field_.has_presence and not message.HasField(field_.name):
            if own is not None:
                return False
        elif not _is_equal_scalar(field_, value, own):
            return False
    return True


def _micros(message: Any) -> int:
    return int(message.seconds * 1_000_000 + message.nanos // 1000)


def _is_equal_scalar(one: Any, value: Any, found: Any) -> bool:
    if one.message_type is not None:
        return is_equal(value, found)
    if one.enum_type is not None:
        names = one.enum_type.values_by_number
        value = names[value].name if value in names else str(value)
    if isinstance(value, float) and math.isnan(value):
        return isinstance(found, float) and math.isnan(found)
    return bool(value == found)
