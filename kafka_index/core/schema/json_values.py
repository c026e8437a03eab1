"""JSON Schema: the Arrow types of schemas, and the decoding of JSON values to these types.

A member whose schema has no type is decoded to JSON text, as is a union that a struct cannot
represent. Members that the schema does not define are collected in the member `ADDITIONAL`, as the
JSON text of an object. Schemas only determine types; their other rules are not checked.

Source: the drafts 4 to 2020-12 of JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.schema.align import MAX_TYPES, Form, Member, Selection, Shape, unused_name
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError
from kafka_index.core.schema.wire import Reason

#: The name of the member with all members that the schema does not define, as JSON text.
ADDITIONAL = "additional_properties"

_BOM = b"\xef\xbb\xbf"
# The maximum number of nested levels; deeper values remain JSON text.
_MAX_DEPTH = 40
# The estimated bytes of Python objects and Arrow arrays per byte of JSON text.
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
    """A value does not have the type in the schema."""

    def __init__(self, reason: Reason = Reason.BAD_VALUE) -> None:
        super().__init__()
        self.reason = reason


@dataclass(slots=True)
class _JsonType:
    """A type: a leaf of `_LEAVES`, ``object``, ``map``, ``array`` or ``union``.

    The member "" has the type of an array's elements or of a map's values.
    """

    kind: str
    members: dict[str, _JsonType] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    has_additional: bool = False
    name: str = ""

    @property
    def shape(self) -> Shape:
        match self.kind:
            case "object" | "union":
                members = [
                    Member(name, member_type.shape) for name, member_type in self.members.items()
                ]
                if self.has_additional:
                    members.append(Member(self.additional, Shape.make_leaf(pa.string())))
                form = Form.STRUCT if self.kind == "object" else Form.UNION
                return Shape.make_struct(members, form)
            case "map":
                return Shape.make_map(Shape.make_leaf(pa.string()), self.members[""].shape)
            case "array":
                return Shape.make_list(self.members[""].shape)
        return Shape.make_leaf(_LEAVES[self.kind])

    @property
    def additional(self) -> str:
        """The name of the member with undefined members: `ADDITIONAL`, or an unused variant."""
        name = ADDITIONAL
        while name in self.members:
            name += "_"
        return name


_ANY = _JsonType("json")


class JsonSchema:
    """A JSON Schema.

    Parameters
    ----------
    text : str
        The schema.
    references : mapping of str to str
        The texts of the schemas that `text` refers to, keyed by the names in ``$ref``.

    Raises
    ------
    BadSchemaError
        The text is not JSON, or refers to a missing schema.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        self._count = 0
        try:
            self._documents = {
                name: json.loads(document_text)
                for name, document_text in {**(references or {}), "": text}.items()
            }
            self._type = self._parse_type(self._documents[""], "", ())
            self.shape = self._type.shape.check_limits()
        except (ValueError, RecursionError) as error:
            raise BadSchemaError(f"the text is not a JSON Schema: {error}") from error
        root = self._documents[""]
        title = root.get("title") if isinstance(root, dict) else None
        #: The title of the schema, or the kind of its values.
        self.name = title if isinstance(title, str) and title else self._type.kind

    def decoder(self, selection: Selection = None) -> JsonDecoder:
        """Return a decoder that decodes only the selected fields."""
        return JsonDecoder(self._type, selection)

    def _parse_type(self, schema: Any, document: str, parents: tuple[int, ...]) -> _JsonType:
        if not isinstance(schema, dict) or id(schema) in parents or len(parents) > _MAX_DEPTH:
            return _ANY
        self._count += 1
        if self._count > MAX_TYPES:
            raise BadSchemaError(
                "the JSON Schema has too many types", expected=f"at most {MAX_TYPES}"
            )
        parents = (*parents, id(schema))
        if isinstance(reference := schema.get("$ref"), str):
            target = self._parse_type(*self._resolve_reference(reference, document), parents)
            if target is not _ANY:
                target.name = target.name or reference.rstrip("/").rpartition("/")[2]
            return target
        parse = partial(self._parse_type, document=document, parents=parents)
        for name in ("oneOf", "anyOf"):
            if isinstance(branches := schema.get(name), list) and "properties" not in schema:
                return _make_union(list(map(parse, branches)))
        if isinstance(conjuncts := schema.get("allOf"), list):
            keywords = {key: value for key, value in schema.items() if key != "allOf"}
            return _intersect_types(list(map(parse, [keywords, *conjuncts])))
        json_type = _parse_keywords(schema, parse)
        title = schema.get("title")
        if isinstance(title, str) and json_type is not _ANY:
            json_type.name = title
        return json_type

    def _resolve_reference(self, reference: str, document: str) -> tuple[Any, str]:
        name, _, fragment = reference.partition("#")
        if name:
            document = name
            if name not in self._documents:
                root = self._documents[""]
                if not (isinstance(root, dict) and root.get("$id", root.get("id")) == name):
                    raise BadSchemaError("the JSON Schema refers to a missing schema", found=name)
                document = ""
        target = self._documents[document]
        for segment in filter(None, fragment.split("/")):
            key = segment.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                raise BadSchemaError("the JSON Schema refers to a missing schema", found=reference)
        return target, document


def _parse_keywords(schema: Mapping[str, Any], parse: Callable[[Any], _JsonType]) -> _JsonType:
    kinds = schema.get("type")
    if kinds is None:
        if isinstance(schema.get("properties"), dict):
            kinds = "object"
        elif "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return _infer_type(values if isinstance(values, list) else [])
        else:
            return _ANY
    if isinstance(kinds, list):
        return _make_union([_parse_kind(str(kind), schema, parse) for kind in kinds])
    return _parse_kind(str(kinds), schema, parse)


def _parse_kind(
    kind: str, schema: Mapping[str, Any], parse: Callable[[Any], _JsonType]
) -> _JsonType:
    match kind:
        case "integer":
            bounds = [schema.get(name) for name in _BOUNDS]
            limits = [abs(bound) for bound in bounds if isinstance(bound, int | float)]
            return _JsonType("big_integer" if max(limits, default=0) > INT64_MAX + 1 else kind)
        case "string" | "number" | "boolean" | "null":
            return _JsonType(kind)
        case "array" if isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
            return _JsonType(kind, {"": parse(schema["items"])})
        case "object":
            return _parse_object(schema, parse)
    return _ANY


def _parse_object(schema: Mapping[str, Any], parse: Callable[[Any], _JsonType]) -> _JsonType:
    additional, has_patterns = (
        schema.get("additionalProperties", True),
        "patternProperties" in schema,
    )
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        is_map = isinstance(additional, dict) and not has_patterns
        return _JsonType("map", {"": parse(additional)}) if is_map else _ANY
    required = schema.get("required")
    return _JsonType(
        "object",
        {name: parse(property_schema) for name, property_schema in properties.items()},
        frozenset(map(str, required) if isinstance(required, list) else ()),
        additional is not False or has_patterns,
    )


def _make_union(branches: Sequence[_JsonType]) -> _JsonType:
    """Return the type of values that match any of several types."""
    value_branches = [branch for branch in branches if branch.kind != "null"]
    kinds = [branch.kind for branch in value_branches]
    if not value_branches:
        return _JsonType("null")
    if "json" in kinds:
        return _ANY
    if set(kinds) <= {"integer", "number"} and "number" in kinds:
        return _JsonType("number")
    if len(value_branches) == 1 or (len(set(kinds)) == 1 and kinds[0] in _LEAVES):
        return value_branches[0]
    if "union" in kinds:
        return _ANY
    used_names: set[str] = set()
    return _JsonType(
        "union",
        {unused_name(branch.name or branch.kind, used_names): branch for branch in value_branches},
    )


def _intersect_types(types: Sequence[_JsonType]) -> _JsonType:
    """Return the type of values that match each of several types (``allOf``)."""
    known_types = [json_type for json_type in types if json_type.kind != "json"]
    if {object_type.kind for object_type in known_types} != {"object"}:
        return known_types[0] if len(known_types) == 1 else _ANY
    members = dict(chain.from_iterable(object_type.members.items() for object_type in known_types))
    required = frozenset(chain.from_iterable(object_type.required for object_type in known_types))
    return _JsonType("object", members, required, has_additional=True)


def _infer_type(values: Sequence[Any]) -> _JsonType:
    kinds = {type(value) for value in values} - {type(None)}
    for kind, accepted in (
        ("string", {str}),
        ("boolean", {bool}),
        ("integer", {int}),
        ("number", {int, float}),
    ):
        if kinds and kinds <= accepted:
            return _JsonType(kind)
    return _ANY


_Convert = Callable[[Any], Any]


class JsonDecoder:
    """Decodes JSON texts to an Arrow array."""

    def __init__(self, json_type: _JsonType, selection: Selection) -> None:
        self._convert = _converter(json_type, selection)
        self._type = json_type.shape.select(selection).type
        self._keeps_text = json_type.kind == "json"
        self._decode = msgspec.json.Decoder().decode

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values may need more memory.
        """
        if bodies.size_bytes * _EXPANSION > max_bytes:
            raise DecodedTooLargeError
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
                errors[row] = _error_reason(error)
            except _MismatchError as error:
                values.append(None)
                errors[row] = error.reason
        return Decoded(pa.array(values, self._type), errors)


def _error_reason(error: Exception) -> Reason:
    message = str(error)
    if isinstance(error, RecursionError):
        return Reason.TOO_LARGE
    if isinstance(error, UnicodeDecodeError) or "utf-8" in message.lower():
        return Reason.BAD_UTF8
    return Reason.TRUNCATED if "truncated" in message else Reason.BAD_VALUE


def _converter(json_type: _JsonType, selection: Selection) -> _Convert:
    match json_type.kind:
        case "object":
            return _object_converter(json_type, selection)
        case "union":
            return _union_converter(json_type, selection)
        case "array" | "map":
            convert_inner = _converter(json_type.members[""], selection and selection[""])
            convert = _convert_list if json_type.kind == "array" else _convert_map
            return lambda value: convert(value, convert_inner)
        case "json":
            return lambda value: None if value is None else json.dumps(value, ensure_ascii=False)
    return _LEAF_CONVERTERS[json_type.kind]


def _member_converters(json_type: _JsonType, selection: Selection) -> dict[str, _Convert]:
    """Return the functions that convert the selected members."""
    return {
        name: _converter(member, selection and selection[name])
        for name, member in json_type.members.items()
        if selection is None or name in selection
    }


def _object_converter(json_type: _JsonType, selection: Selection) -> _Convert:
    converters = list(_member_converters(json_type, selection).items())
    defined_names, additional = json_type.members.keys(), json_type.additional
    keeps_additional = json_type.has_additional and (selection is None or additional in selection)

    def convert_object(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict:
            raise _MismatchError
        members = {name: convert(value.get(name)) for name, convert in converters}
        if value.keys() <= defined_names:
            return members
        if not json_type.has_additional:
            raise _MismatchError
        if keeps_additional:
            undefined = {name: value[name] for name in value if name not in defined_names}
            members[additional] = json.dumps(undefined, ensure_ascii=False)
        return members

    return convert_object


def _union_converter(json_type: _JsonType, selection: Selection) -> _Convert:
    # To find the branch that a value matches, the value is converted to every branch. Only values
    # of selected branches are returned.
    branches = [
        (name, branch, _converter(branch, None)) for name, branch in json_type.members.items()
    ]
    selected = _member_converters(json_type, selection)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        best_branch: str | None = None
        fewest_undefined = 0
        for name, branch, convert_branch in branches:
            is_object = branch.kind == "object"
            if is_object and not (type(value) is dict and value.keys() >= branch.required):
                continue
            try:
                convert_branch(value)
            except _MismatchError:
                continue
            undefined = len(value.keys() - branch.members.keys()) if is_object else 0
            if best_branch is None or undefined < fewest_undefined:
                best_branch, fewest_undefined = name, undefined
        if best_branch is None:
            raise _MismatchError
        return {best_branch: selected[best_branch](value)} if best_branch in selected else {}

    return convert


def _convert_list(value: Any, convert_element: _Convert) -> Any:
    if value is None:
        return None
    if type(value) is not list:
        raise _MismatchError
    return [convert_element(element) for element in value]


def _convert_map(value: Any, convert_member: _Convert) -> Any:
    if value is None:
        return None
    if type(value) is not dict:
        raise _MismatchError
    return [(key, convert_member(member)) for key, member in value.items()]


def _convert_integer(value: Any, limit: int) -> Any:
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _MismatchError
    if not -limit - 1 <= value <= limit:
        raise _MismatchError(Reason.OUT_OF_RANGE)
    return value


def _convert_number(value: Any) -> Any:
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
    "integer": lambda value: _convert_integer(value, INT64_MAX),
    "big_integer": lambda value: _convert_integer(value, _DECIMAL_LIMIT - 1),
    "number": _convert_number,
    "boolean": lambda value: _require_type(value, bool),
    "null": lambda value: _require_type(value, type(None)),
}
