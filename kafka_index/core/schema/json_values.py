"""JSON Schema: its types in Arrow, and the decoding of JSON values against them.

A member without a type keeps its JSON text, and so does a union that no struct represents. Members
that the schema does not define are in `ADDITIONAL`, as the text of an object. The schema is used
for types only: values are not validated.

Source: the drafts 4 to 2020-12 of JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.schema.align import MAX_TYPES, Form, Member, Selection, Shape, unused_name
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError
from kafka_index.core.schema.wire import Reason

#: The name of the member that contains, as JSON text, the members that the schema does not define.
ADDITIONAL = "additional_properties"

_BOM = b"\xef\xbb\xbf"
# Values at deeper levels remain JSON text.
_MAX_DEPTH = 40
# Bytes of Python objects and of Arrow arrays per byte of a text.
_EXPANSION = 24
_DECIMAL_LIMIT = 10**38
_DECIMAL = pa.decimal128(38, 0)
_LEAVES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "big_integer": _DECIMAL,
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "null": pa.null(),
    "json": pa.string(),
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class _MismatchError(Exception):
    """A value that does not have the type in its schema."""

    def __init__(self, reason: Reason = Reason.BAD_VALUE) -> None:
        super().__init__()
        self.reason = reason


@dataclass(slots=True)
class _Type:
    """A type: a leaf of `_LEAVES`, ``object``, ``map``, ``array`` or ``union``.

    The type of elements or of the values of a map is the member "".
    """

    kind: str
    members: dict[str, _Type] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    has_additional: bool = False
    name: str = ""

    @property
    def shape(self) -> Shape:
        match self.kind:
            case "object" | "union":
                members = [Member(name, one.shape) for name, one in self.members.items()]
                if self.has_additional:
                    members.append(Member(self.additional, Shape.of_leaf(pa.string())))
                form = Form.STRUCT if self.kind == "object" else Form.UNION
                return Shape.of_struct(members, form)
            case "map":
                return Shape.of_map(Shape.of_leaf(pa.string()), self.members[""].shape)
            case "array":
                return Shape.of_list(self.members[""].shape)
        return Shape.of_leaf(_LEAVES[self.kind])

    @property
    def additional(self) -> str:
        """The name of the member for members that the schema does not define."""
        name = ADDITIONAL
        while name in self.members:
            name += "_"
        return name


_ANY = _Type("json")


class JsonSchema:
    """A JSON Schema.

    Parameters
    ----------
    text : str
        The schema.
    references : mapping of str to str
        The schemas that it refers to, by the names in ``$ref``.

    Raises
    ------
    BadSchemaError
        The text is not JSON, or refers to a missing schema.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        self._count = 0
        try:
            self._documents = {
                name: json.loads(one) for name, one in {**(references or {}), "": text}.items()
            }
            self._type = self._type_of(self._documents[""], "", ())
            self.shape = self._type.shape.checked()
        except (ValueError, RecursionError) as error:
            raise BadSchemaError(f"not a JSON schema: {error}") from error
        root = self._documents[""]
        title = root.get("title") if isinstance(root, dict) else None
        #: The title of the schema, or the kind of its values.
        self.name = title if isinstance(title, str) and title else self._type.kind

    def decoder(self, selection: Selection = None) -> JsonDecoder:
        """Return the decoder of the selected members."""
        return JsonDecoder(self._type, selection)

    def _type_of(self, schema: Any, document: str, parents: tuple[int, ...]) -> _Type:
        if not isinstance(schema, dict) or id(schema) in parents or len(parents) > _MAX_DEPTH:
            return _ANY
        self._count += 1
        if self._count > MAX_TYPES:
            raise BadSchemaError("a JSON schema has too many types")
        parents = (*parents, id(schema))
        if isinstance(reference := schema.get("$ref"), str):
            found, document = self._referred(reference, document)
            referred = self._type_of(found, document, parents)
            if referred is not _ANY:
                referred.name = referred.name or reference.rstrip("/").rpartition("/")[2]
            return referred
        for name in ("oneOf", "anyOf"):
            if isinstance(branches := schema.get(name), list) and "properties" not in schema:
                return _union([self._type_of(one, document, parents) for one in branches])
        if isinstance(parts := schema.get("allOf"), list):
            own = {key: value for key, value in schema.items() if key != "allOf"}
            return _joined([self._type_of(one, document, parents) for one in (own, *parts)])
        found_type = self._of_keyword(schema, document, parents)
        title = schema.get("title")
        if isinstance(title, str) and found_type is not _ANY:
            found_type.name = title
        return found_type

    def _of_keyword(self, schema: dict[str, Any], document: str, parents: tuple[int, ...]) -> _Type:
        kinds = schema.get("type")
        if kinds is None:
            if isinstance(schema.get("properties"), dict):
                kinds = "object"
            elif "enum" in schema or "const" in schema:
                values = schema.get("enum", [schema.get("const")])
                return _type_of_values(values if isinstance(values, list) else [])
            else:
                return _ANY
        if isinstance(kinds, list):
            return _union([self._of_kind(str(one), schema, document, parents) for one in kinds])
        return self._of_kind(str(kinds), schema, document, parents)

    def _of_kind(  # noqa: PLR0911
        self, kind: str, schema: dict[str, Any], document: str, parents: tuple[int, ...]
    ) -> _Type:
        if kind == "integer":
            bounds = [schema.get(name) for name in _BOUNDS]
            is_big = any(isinstance(b, int | float) and abs(b) > INT64_MAX + 1 for b in bounds)
            return _Type("big_integer" if is_big else "integer")
        if kind in ("string", "number", "boolean", "null"):
            return _Type(kind)
        if kind == "array":
            items = schema.get("items")
            if not isinstance(items, dict) or "prefixItems" in schema:
                return _ANY
            return _Type("array", {"": self._type_of(items, document, parents)})
        if kind != "object":
            return _ANY
        more = schema.get("additionalProperties", True)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            if isinstance(more, dict) and "patternProperties" not in schema:
                return _Type("map", {"": self._type_of(more, document, parents)})
            return _ANY
        required = schema.get("required")
        return _Type(
            "object",
            {name: self._type_of(one, document, parents) for name, one in properties.items()},
            frozenset(map(str, required) if isinstance(required, list) else ()),
            more is not False or "patternProperties" in schema,
        )

    def _referred(self, reference: str, document: str) -> tuple[Any, str]:
        name, _, fragment = reference.partition("#")
        if name:
            document = name
            if name not in self._documents:
                own = self._documents[""]
                if not (isinstance(own, dict) and own.get("$id", own.get("id")) == name):
                    raise BadSchemaError("a JSON schema refers to a missing schema", found=name)
                document = ""
        found = self._documents[document]
        for part in filter(None, fragment.split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise BadSchemaError("a JSON schema refers to a missing schema", found=reference)
        return found, document


def _union(branches: Sequence[_Type]) -> _Type:
    """Return the type of values that have one of several types."""
    others = [branch for branch in branches if branch.kind != "null"]
    kinds = [branch.kind for branch in others]
    if not others:
        return _Type("null")
    if "json" in kinds:
        return _ANY
    if set(kinds) <= {"integer", "number"} and "number" in kinds:
        return _Type("number")
    if len(others) == 1 or (len(set(kinds)) == 1 and kinds[0] in _LEAVES):
        return others[0]
    if "union" in kinds:
        return _ANY
    used_names: set[str] = set()
    return _Type(
        "union",
        {unused_name(branch.name or branch.kind, used_names): branch for branch in others},
    )


def _joined(parts: Sequence[_Type]) -> _Type:
    """Return the type of values that have all of several types."""
    typed = [part for part in parts if part.kind != "json"]
    if any(part.kind != "object" for part in typed) or not typed:
        return typed[0] if len(typed) == 1 else _ANY
    members = {name: kind for part in typed for name, kind in part.members.items()}
    required = frozenset[str]().union(*(part.required for part in typed))
    return _Type("object", members, required, has_additional=True)


def _type_of_values(values: Sequence[Any]) -> _Type:
    kinds = {type(value) for value in values} - {type(None)}
    for kind, accepted in (
        ("string", {str}),
        ("boolean", {bool}),
        ("integer", {int}),
        ("number", {int, float}),
    ):
        if kinds and kinds <= accepted:
            return _Type(kind)
    return _ANY


_Convert = Callable[[Any], Any]


class JsonDecoder:
    """Decodes JSON texts to an array of Arrow."""

    def __init__(self, kind: _Type, selection: Selection) -> None:
        self._convert = _converter(kind, selection)
        self._type = kind.shape.select(selection).type
        self._keeps_text = kind.kind == "json"
        self._decode = msgspec.json.Decoder().decode

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values of more than one row may need more memory.
        """
        sizes = np.where(bodies.starts < 0, 0, bodies.ends - bodies.starts)
        if int(sizes.sum()) * _EXPANSION > max_bytes:
            if len(bodies) > 1:
                raise DecodedTooLargeError
            return Decoded(pa.nulls(1, self._type), {0: Reason.TOO_LARGE})
        values: list[Any] = []
        errors: dict[int, Reason] = {}
        data, convert, decode = bodies.data.data, self._convert, self._decode
        rows = zip(bodies.starts.tolist(), bodies.ends.tolist(), strict=True)
        for row, (start, end) in enumerate(rows):
            if start < 0:
                values.append(None)
                continue
            body = data[start:end]
            if body[:3] == _BOM:
                body = body[3:]
            try:
                value = decode(body)
                values.append(str(body, "utf-8") if self._keeps_text else convert(value))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                values.append(None)
                errors[row] = _reason_of(error)
            except _MismatchError as error:
                values.append(None)
                errors[row] = error.reason
        return Decoded(pa.array(values, self._type), errors)


def _reason_of(error: Exception) -> Reason:
    text = str(error)
    if isinstance(error, RecursionError):
        return Reason.TOO_LARGE
    if isinstance(error, UnicodeDecodeError) or "utf-8" in text.lower():
        return Reason.BAD_UTF8
    return Reason.TRUNCATED if "truncated" in text else Reason.BAD_VALUE


def _converter(kind: _Type, selection: Selection) -> _Convert:
    match kind.kind:
        case "object":
            return _object_converter(kind, selection)
        case "union":
            return _union_converter(kind, selection)
        case "array" | "map":
            inner = _converter(kind.members[""], selection and selection[""])
            convert = _list if kind.kind == "array" else _map
            return lambda value: convert(value, inner)
        case "json":
            return lambda value: None if value is None else json.dumps(value, ensure_ascii=False)
    return _LEAF_CONVERTERS[kind.kind]


def _member_converters(kind: _Type, selection: Selection) -> dict[str, _Convert]:
    """Return the conversions of the selected members."""
    return {
        name: _converter(member, selection and selection[name])
        for name, member in kind.members.items()
        if selection is None or name in selection
    }


def _object_converter(kind: _Type, selection: Selection) -> _Convert:
    parts = list(_member_converters(kind, selection).items())
    known, additional = kind.members.keys(), kind.additional
    keeps = kind.has_additional and (selection is None or additional in selection)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict:
            raise _MismatchError
        found = {name: one(value.get(name)) for name, one in parts}
        if value.keys() <= known:
            return found
        if not kind.has_additional:
            raise _MismatchError
        if keeps:
            others = {name: member for name, member in value.items() if name not in known}
            found[additional] = json.dumps(others, ensure_ascii=False)
        return found

    return convert


def _union_converter(kind: _Type, selection: Selection) -> _Convert:
    # Each value is converted to every branch, to find the matching one. Only selected branches are
    # kept.
    branches = [(name, branch, _converter(branch, None)) for name, branch in kind.members.items()]
    selected = _member_converters(kind, selection)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        best: str | None = None
        fewest = 0
        for name, branch, convert_branch in branches:
            is_object = branch.kind == "object"
            if is_object and not (type(value) is dict and value.keys() >= branch.required):
                continue
            try:
                convert_branch(value)
            except _MismatchError:
                continue
            undefined = len(value.keys() - branch.members.keys()) if is_object else 0
            if best is None or undefined < fewest:
                best, fewest = name, undefined
        if best is None:
            raise _MismatchError
        return {best: selected[best](value)} if best in selected else {}

    return convert


def _list(value: Any, inner: _Convert) -> Any:
    if value is None:
        return None
    if type(value) is not list:
        raise _MismatchError
    return [inner(one) for one in value]


def _map(value: Any, inner: _Convert) -> Any:
    if value is None:
        return None
    if type(value) is not dict:
        raise _MismatchError
    return [(key, inner(one)) for key, one in value.items()]


def _integer(value: Any, limit: int) -> Any:
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _MismatchError
    if not -limit - 1 <= value <= limit:
        raise _MismatchError(Reason.OUT_OF_RANGE)
    return value


def _number(value: Any) -> Any:
    if value is None or type(value) is float:
        return value
    if type(value) is not int:
        raise _MismatchError
    try:
        return float(value)
    except OverflowError as error:
        raise _MismatchError(Reason.OUT_OF_RANGE) from error


def _require_type(value: Any, accepted: type) -> Any:
    if value is None or type(value) is accepted:
        return value
    raise _MismatchError


_LEAF_CONVERTERS: Mapping[str, _Convert] = {
    "string": lambda value: _require_type(value, str),
    "integer": lambda value: _integer(value, INT64_MAX),
    "big_integer": lambda value: _integer(value, _DECIMAL_LIMIT - 1),
    "number": _number,
    "boolean": lambda value: _require_type(value, bool),
    "null": lambda value: _require_type(value, type(None)),
}
