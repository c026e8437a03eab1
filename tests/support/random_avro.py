"""Random Avro schemas with values, chains of versions, and the comparison with fastavro."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import numpy as np

from kafka_index.core.schema.avro import json_value
from kafka_index.core.schema.bodies import Bodies

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
    ("string", "uuid"),
    ("long", "made-up"),
)
_TEXTS = ("", "plain", "Grüße, 世界 🚀", "nul\0inside", "x" * 70, '"\\\n\t')
_UTC = dt.UTC


class RandomAvro:
    """Draws schemas and values; names of types are distinct within a schema."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._names = 0

    def _name(self) -> str:
        self._names += 1
        return f"T{self._names}"

    def record(self, depth: int = 3, *, fields: int = 8) -> dict[str, Any]:
        """A record; types of its fields are nested to a depth."""
        count = self.random.randint(1, fields)
        names = [f"f{number}" for number in range(count)]
        return {
            "type": "record",
            "name": self._name(),
            "namespace": self.random.choice(("a", "a.b")),
            "fields": [{"name": name, "type": self.type(depth)} for name in names],
        }

    def type(self, depth: int) -> Any:  # noqa: PLR0911
        """Any type."""
        kind = self.random.randrange(12 if depth else 7)
        if kind < 3:
            return self.random.choice(_PRIMITIVES)
        if kind < 5:
            base, logical = self.random.choice(_LOGICAL)
            return {"type": base, "logicalType": logical}
        if kind == 5:
            return self._named()
        if kind == 6:
            return self.random.choice([["null", "long"], ["string", "null"], ["null", "double"]])
        if kind == 7:
            return {"type": "array", "items": self.type(depth - 1)}
        if kind == 8:
            return {"type": "map", "values": self.type(depth - 1)}
        if kind == 9:
            return self._union(depth)
        if kind == 10:
            return ["null", self.record(depth - 1, fields=3)]
        return self.record(depth - 1, fields=4)

    def _named(self) -> Any:
        name = self._name()
        match self.random.randrange(4):
            case 0:
                return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
            case 1:
                return {"type": "fixed", "name": name, "size": self.random.choice((1, 6, 16))}
            case 2:
                precision, size = self.random.choice(((4, 2), (18, 8), (38, 16)))
                decimal = {"precision": precision, "scale": 2, "logicalType": "decimal"}
                return {"type": "fixed", "name": name, "size": size, **decimal}
        precision = self.random.choice((5, 18, 38))
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 3}

    def _union(self, depth: int) -> list[Any]:
        branches: list[Any] = ["null", "long", "string", "boolean", "double"]
        branches = self.random.sample(branches, self.random.randint(2, 4))
        if self.random.random() < 0.4:
            branches.append(self.record(depth - 1, fields=2))
        if self.random.random() < 0.3:
            branches.append({"type": "array", "items": "long"})
        return branches

    def value(self, schema: Any) -> Any:  # noqa: PLR0911
        """A value of a schema."""
        random = self.random
        match schema:
            case list():
                return self.value(random.choice(schema))
            case {"type": "record"}:
                return {one["name"]: self.value(one["type"]) for one in schema["fields"]}
            case {"type": "array"}:
                return [self.value(schema["items"]) for _ in range(random.randrange(4))]
            case {"type": "map"}:
                return {f"k{n}": self.value(schema["values"]) for n in range(random.randrange(3))}
            case {"type": "enum"}:
                return random.choice(schema["symbols"])
            case {"logicalType": "decimal"}:
                most = 10 ** schema["precision"] - 1
                number = random.choice((0, 1, -1, most, -most, random.randint(-most, most)))
                digits = tuple(map(int, str(abs(number))))
                return Decimal((int(number < 0), digits, -schema["scale"]))
            case {"type": "fixed"}:
                return random.randbytes(schema["size"])
            case {"type": base, "logicalType": logical}:
                return self._logical(base, logical)
        return self._primitive(schema)

    def _primitive(self, name: str) -> Any:  # noqa: PLR0911
        random = self.random
        match name:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int":
                return random.choice((0, -1, 63, 64, 2**31 - 1, -(2**31), random.randrange(10**6)))
            case "long":
                return random.choice((0, -1, 2**63 - 1, -(2**63), random.randrange(10**12)))
            case "float":
                return random.choice((0.5, -0.0, 1024.0, math.inf))
            case "double":
                return random.choice((0.1, -0.0, math.inf, math.nan, random.random()))
            case "bytes":
                return random.randbytes(random.randrange(20))
        return random.choice(_TEXTS)

    def _logical(self, base: str, logical: str) -> Any:
        random = self.random
        moment = dt.datetime(1970, 1, 1, tzinfo=_UTC) + dt.timedelta(
            seconds=random.randrange(-(10**9), 3 * 10**9), milliseconds=random.randrange(1000)
        )
        match logical:
            case "date":
                return moment.date()
            case "time-millis" | "time-micros":
                return moment.time()
            case "timestamp-millis" | "timestamp-micros":
                return moment
            case "local-timestamp-millis" | "local-timestamp-micros":
                return moment.replace(tzinfo=None)
            case "uuid":
                return uuid.UUID(bytes=random.randbytes(16))
        return self._primitive(base)

    def next_version(self, record: dict[str, Any]) -> dict[str, Any]:
        """A version of a record with some changes of its fields."""
        fields = [dict(one) for one in record["fields"]]
        random = self.random
        for one in fields:
            wider = {"int": "long", "float": "double"}.get(
                one["type"] if isinstance(one["type"], str) else ""
            )
            if wider and random.random() < 0.5:
                one["type"] = wider
            elif random.random() < 0.1:
                one["type"] = random.choice(("string", "long", {"type": "array", "items": "int"}))
            elif random.random() < 0.2:
                one["aliases"] = [*one.get("aliases", ()), one["name"]]
                one["name"] += "n"
        if len(fields) > 1 and random.random() < 0.4:
            fields.pop(random.randrange(len(fields)))
        if random.random() < 0.6:
            fields.append({"name": self._name().lower(), "type": self.type(1)})
        random.shuffle(fields)
        return {**record, "fields": fields}


def encode(schema: Any, values: Sequence[Any]) -> list[bytes]:
    """The datums of values."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    datums = []
    for value in values:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, value)
        datums.append(file.getvalue())
    return datums


def read(schema: Any, datum: bytes) -> Any:
    """What fastavro reads."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    return fastavro.schemaless_reader(io.BytesIO(datum), parsed)


def bodies_of(datums: Sequence[bytes | None]) -> Bodies:
    """The bodies of rows; None for a row without."""
    sizes = np.array([len(datum or b"") for datum in datums], np.int64)
    ends = np.cumsum(sizes)
    starts = np.where([datum is None for datum in datums], -1, ends - sizes)
    return Bodies(np.frombuffer(b"".join(d or b"" for d in datums), np.uint8), starts, ends)


def is_equal(schema: Any, expected: Any, found: Any) -> bool:  # noqa: PLR0911
    """Whether a value of Arrow is the one that fastavro has read."""
    match schema:
        case list():
            return _is_equal_branch(schema, expected, found)
        case {"type": "record"}:
            return isinstance(found, dict) and all(
                is_equal(one["type"], expected[one["name"]], found.get(one["name"]))
                for one in schema["fields"]
            )
        case {"type": "array"}:
            return len(expected) == len(found) and all(
                is_equal(schema["items"], *pair) for pair in zip(expected, found, strict=True)
            )
        case {"type": "map"}:
            # Arrow keeps a key that is there twice.
            own = dict(found)
            return own.keys() == expected.keys() and all(
                is_equal(schema["values"], expected[key], own[key]) for key in own
            )
        case {"logicalType": "uuid"}:
            # Python's reader of UUIDs takes other texts, too.
            return bool(expected == uuid.UUID(found))
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return bool(expected == found) and (expected is None) == (found is None)


def _is_equal_branch(branches: list[Any], expected: Any, found: Any) -> bool:
    others = [branch for branch in branches if branch != "null"]
    if expected is None or found is None:
        return expected is None and found is None
    if len(others) == 1:
        return is_equal(others[0], expected, found)
    present = [(at, value) for at, value in enumerate(found.values()) if value is not None]
    return len(present) == 1 and is_equal(others[present[0][0]], expected, present[0][1])


def text_of(value: Any) -> str:
    """The JSON text of a value."""
    return json.dumps(json_value(value), ensure_ascii=False)
