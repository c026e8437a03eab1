"""Joins the writer schemas of a topic into one Arrow type.

A `Shape` is the Arrow type of a schema, with the aliases and numbers of the schema's fields.
`align` joins the shapes of schema versions into one shape, with a `Plan` for each version. A plan
selects the members that a decoder builds (`Plan.selection`), and converts the decoder's arrays to
the joined type (`Plan.convert`).

Fields match by name, then by the aliases of newer schemas (Avro), or by number (Protobuf). If a
field was renamed, its column has the newest name. If a type changed, it is widened if possible.
Otherwise, the later type has a separate column, such as ``x__string``. No field is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Self, TypeAlias

import pyarrow as pa

from kafka_index.core.errors import BadSchemaError, InputError
from kafka_index.core.schema.bodies import with_children

#: The selected members of a struct by name, each with a selection of its own members. For a list or
#: a map, the name "" has the selection for elements or values. None selects all members.
Selection: TypeAlias = "Mapping[str, Selection] | None"

#: The maximum number of types in a schema, and of nested levels: Arrow can export 64 levels.
MAX_TYPES, _MAX_DEPTH = 50_000, 56
#: The name of the elements of lists in Parquet.
ELEMENT = "element"


class Form(StrEnum):
    """Whether a type is a leaf, struct, union, list or map."""

    LEAF = "leaf"
    STRUCT = "struct"
    #: A struct with a member for each branch of a union.
    UNION = "union"
    LIST = "array"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct; or, without a name, an element of a list, or a key or value of a map.

    Attributes
    ----------
    aliases : tuple of str
        Earlier names of an Avro field.
    number : int or None
        The number of a Protobuf field.
    """

    name: str
    shape: Shape
    aliases: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The Arrow type of a schema or field, with the aliases and numbers of the type's members."""

    form: Form
    type: pa.DataType
    members: tuple[Member, ...] = ()
    #: The number of types in the shape, and the number of nested levels in Arrow.
    size: int = 1
    depth: int = 0

    @classmethod
    def make_leaf(cls, arrow_type: pa.DataType) -> Shape:
        """Return the shape of a value without members."""
        return cls(Form.LEAF, arrow_type)

    @classmethod
    def make_struct(cls, members: Sequence[Member], form: Form = Form.STRUCT) -> Shape:
        """Return the shape of a struct or a union."""
        fields = [pa.field(member.name, member.shape.type) for member in members]
        return cls._from_members(form, pa.struct(fields), *members)

    @classmethod
    def make_list(cls, element: Shape) -> Shape:
        """Return the shape of a list."""
        arrow_type = pa.list_(pa.field(ELEMENT, element.type))
        return cls._from_members(Form.LIST, arrow_type, Member("", element))

    @classmethod
    def make_map(cls, key: Shape, value: Shape) -> Shape:
        """Return the shape of a map."""
        arrow_type = pa.map_(key.type, pa.field("value", value.type))
        return cls._from_members(Form.MAP, arrow_type, Member("", key), Member("", value))

    @classmethod
    def _from_members(cls, form: Form, arrow_type: pa.DataType, *members: Member) -> Shape:
        levels = 2 if form is Form.MAP else 1
        depth = levels + max((member.shape.depth for member in members), default=0)
        size = 1 + sum(member.shape.size for member in members)
        return cls(form, arrow_type, members, size, depth)

    def check_limits(self) -> Self:
        """Return the shape; raises `BadSchemaError` for too many types or levels.

        If each named type uses the previous one twice, the number of types doubles with each level.
        """
        if self.size > MAX_TYPES:
            raise BadSchemaError(
                "the schema has too many types",
                expected=f"at most {MAX_TYPES}",
                found=str(self.size),
            )
        if self.depth > _MAX_DEPTH:
            raise BadSchemaError(
                "the schema is nested too deeply", expected=f"at most {_MAX_DEPTH} levels"
            )
        return self

    @property
    def is_struct(self) -> bool:
        """Whether the members have names."""
        return self.form in (Form.STRUCT, Form.UNION)

    def select(self, selection: Selection) -> Shape:
        """Return the shape with the selected members only."""
        if selection is None:
            return self
        if self.is_struct:
            return Shape.make_struct(
                [
                    replace(member, shape=member.shape.select(selection[member.name]))
                    for member in self.members
                    if member.name in selection
                ],
                self.form,
            )
        if self.form is Form.LIST:
            return Shape.make_list(self.members[0].shape.select(selection[""]))
        if self.form is Form.MAP:
            key, value = (member.shape for member in self.members)
            return Shape.make_map(key, value.select(selection[""]))
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """The conversion of arrays with the type of a writer schema to the joined type.

    Attributes
    ----------
    target : Shape
        The joined shape.
    sources : tuple of (str or None, Plan or None)
        For each member of the target, the name and the plan of the writer's member; None if the
        writer's schema lacks the member.
    is_identity : bool
        Whether the writer's arrays have the joined type without a conversion.
    """

    target: Shape
    sources: tuple[tuple[str | None, Plan | None], ...] = ()
    is_identity: bool = False

    @property
    def selection(self) -> Selection:
        """The members of the writer's schema that the joined shape contains."""
        if not self.sources:
            return None
        if self.target.is_struct:
            return {
                name: plan.selection
                for name, plan in self.sources
                if name is not None and plan is not None
            }
        plan = self.sources[-1][1]
        return None if plan is None else {"": plan.selection}

    def convert(self, array: pa.Array) -> pa.Array:
        """Convert an array from the writer's shape to the joined shape."""
        if self.is_identity:
            return array
        target = self.target
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), target.type)
        if target.form is Form.LEAF:
            return array.cast(target.type)
        if target.is_struct:
            children = [
                pa.nulls(len(array), member.shape.type)
                if name is None or plan is None
                else plan.convert(array.field(name))
                for (name, plan), member in zip(self.sources, target.members, strict=True)
            ]
            return with_children(array, target.type, children)
        plans = [plan for _, plan in self.sources if plan is not None]
        if target.form is Form.LIST:
            return with_children(array, target.type, [plans[0].convert(array.values)])
        pair = [plans[0].convert(array.keys), plans[1].convert(array.items)]
        fields = [target.type.key_field, target.type.item_field]
        entries = pa.StructArray.from_arrays(pair, fields=fields)
        return with_children(array, target.type, [entries])

    def select(self, selection: Selection) -> Plan:
        """Return the plan for the selected members of the joined shape."""
        if selection is None:
            return self
        target = self.target.select(selection)
        if not self.sources:
            return Plan(target, (), self.is_identity)
        if target.is_struct:
            sources = tuple(
                (name, None if plan is None else plan.select(selection[member.name]))
                for (name, plan), member in zip(self.sources, self.target.members, strict=True)
                if member.name in selection
            )
        else:
            *keys, (_, plan) = self.sources
            sources = (*keys, ("", None if plan is None else plan.select(selection[""])))
        return Plan(target, sources, self.is_identity)


def _plan_members(
    target: Shape, sources: tuple[tuple[str | None, Plan | None], ...], shape: Shape
) -> Plan:
    """Return the plan for arrays of a writer's shape, from the plans for its members."""
    is_identity = shape.type == target.type and all(
        name == member.name and plan is not None and plan.is_identity
        for (name, plan), member in zip(sources, target.members, strict=True)
    )
    return Plan(target, sources, is_identity)


class _ConflictError(Exception):
    """The shapes of several versions have no common type."""


def align(shapes: Sequence[Shape]) -> tuple[Shape, list[Plan]]:
    """Join the shapes of versions, the oldest first; return the joined shape and a plan for each.

    Raises `InputError` if the shapes have no common type.
    """
    try:
        target, plans = _join_shapes(list(shapes))
    except _ConflictError as error:
        raise InputError(f"the schemas have no common type: {error}") from error
    return target, plans


def _join_shapes(shapes: list[Shape]) -> tuple[Shape, list[Plan]]:
    """Return the joined shape, and a plan for each; raises `_ConflictError`."""
    typed_shapes = [shape for shape in shapes if not pa.types.is_null(shape.type)]
    forms = {shape.form for shape in typed_shapes}
    if len(forms) > 1:
        raise _ConflictError(" and ".join(sorted(forms)))
    form = next(iter(forms), Form.LEAF)
    if form is Form.LEAF:
        arrow_type = reduce(_wider_type, [shape.type for shape in shapes])
        target = Shape.make_leaf(arrow_type)
        return target, [Plan(target, (), shape.type == arrow_type) for shape in shapes]
    if form in (Form.STRUCT, Form.UNION):
        target, plans = _join_structs(typed_shapes, form)
    else:
        inner_members = zip(*(shape.members for shape in typed_shapes), strict=True)
        joined = [_join_shapes([member.shape for member in members]) for members in inner_members]
        inner_shapes = [shape for shape, _ in joined]
        target = (
            Shape.make_list(*inner_shapes) if form is Form.LIST else Shape.make_map(*inner_shapes)
        )
        plans = []
        for number, shape in enumerate(typed_shapes):
            sources = tuple(("", inner_plans[number]) for _, inner_plans in joined)
            plans.append(_plan_members(target, sources, shape))
    typed_plans = iter(plans)
    # Null-typed shapes have no members and were not joined, so their plans have no sources.
    return target, [
        Plan(target) if pa.types.is_null(shape.type) else next(typed_plans) for shape in shapes
    ]


def _wider_type(older: pa.DataType, newer: pa.DataType) -> pa.DataType:
    if older == newer or pa.types.is_null(newer):
        return older
    if pa.types.is_null(older):
        return newer
    for pair in _WIDENINGS:
        if {older, newer} == set(pair):
            return pair[1]
    are_decimals = pa.types.is_decimal128(older) and pa.types.is_decimal128(newer)
    if not are_decimals or older.scale != newer.scale:
        raise _ConflictError(f"{older} and {newer}")
    return max(older, newer, key=lambda decimal_type: decimal_type.precision)


_WIDENINGS = (
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.uint64()),
    (pa.float32(), pa.float64()),
)


@dataclass(slots=True)
class _JoinedColumn:
    """A column of the joined struct, with the member of each version that has the column."""

    members: dict[int, Member]
    shape: Shape
    plans: dict[int, Plan]
    name: str = ""

    @property
    def newest(self) -> int:
        return max(self.members)

    def add(self, version: int, member: Member) -> bool:
        """Add the member of a version if its type can be joined; return whether it was added."""
        versions = [*self.members, version]
        try:
            shape, plans = _join_shapes(
                [*(version_member.shape for version_member in self.members.values()), member.shape]
            )
        except _ConflictError:
            return False
        self.members[version] = member
        self.shape, self.plans = shape, dict(zip(versions, plans, strict=True))
        return True


def _join_structs(shapes: list[Shape], form: Form) -> tuple[Shape, list[Plan]]:
    identities = _member_identities(shapes)
    columns_by_identity: dict[object, list[_JoinedColumn]] = {}
    for version, shape in enumerate(shapes):
        for member in shape.members:
            columns = columns_by_identity.setdefault(identities[version, member.name], [])
            if not any(column.add(version, member) for column in columns):
                # A single shape is joined too: within it, names that differ only in case get
                # suffixes.
                joined, plans = _join_shapes([member.shape])
                columns.append(_JoinedColumn({version: member}, joined, {version: plans[0]}))
    _name_columns(columns_by_identity)
    positions = [
        {member.name: position for position, member in enumerate(shape.members)} for shape in shapes
    ]

    def order(column: _JoinedColumn) -> tuple[int, int]:
        # Columns are ordered by newest version, and then by position in this version.
        newest = column.newest
        return -newest, positions[newest][column.members[newest].name]

    columns = sorted(
        (column for joined_columns in columns_by_identity.values() for column in joined_columns),
        key=order,
    )
    target = Shape.make_struct(
        [
            replace(column.members[column.newest], name=column.name, shape=column.shape)
            for column in columns
        ],
        form,
    )
    plans = []
    for version, shape in enumerate(shapes):
        sources = tuple(
            (column.members[version].name, column.plans[version])
            if version in column.members
            else (None, None)
            for column in columns
        )
        plans.append(_plan_members(target, sources, shape))
    return target, plans


def _member_identities(shapes: list[Shape]) -> dict[tuple[int, str], object]:
    """Map schema version and member name to the field number, or to the newest name.

    The newest name identifies members in formats without field numbers.
    """
    newer_name: dict[str, str] = {}
    for shape in reversed(shapes):
        for member in shape.members:
            for alias in member.aliases:
                newer_name.setdefault(alias, newer_name.get(member.name, member.name))
    identities: dict[tuple[int, str], object] = {}
    for version, shape in enumerate(shapes):
        names = {member.name for member in shape.members}
        for member in shape.members:
            if member.number is not None:
                identities[version, member.name] = member.number
                continue
            renamed = newer_name.get(member.name, member.name)
            # If a schema has both the old and the new name, these are two fields.
            identities[version, member.name] = member.name if renamed in names else renamed
    return identities


def _name_columns(columns_by_identity: Mapping[object, list[_JoinedColumn]]) -> None:
    """Give columns names that differ in lower case; the oldest of equal names has no suffix."""
    ordered: list[tuple[int, int, _JoinedColumn]] = []
    for columns in columns_by_identity.values():
        newest = max(columns, key=lambda column: column.newest)
        name = newest.members[newest.newest].name
        for position, column in enumerate(columns):
            column.name = f"{name}__{_type_name(column.shape)}" if position else name
            ordered.append((min(column.members), position, column))
    used_names: set[str] = set()
    for *_, column in sorted(ordered, key=lambda item: item[:2]):
        column.name = unused_name(column.name, used_names, "__")


def unused_name(name: str, used_names: set[str], separator: str = "_") -> str:
    """Return the name, with a number if used names contain it in any letter case.

    `used_names` contains the used names in lower case. The returned name is added to `used_names`.
    """
    unused, number = name, 1
    while unused.lower() in used_names:
        number += 1
        unused = f"{name}{separator}{number}"
    used_names.add(unused.lower())
    return unused


def _type_name(shape: Shape) -> str:
    """Return the name of a type, for the suffix of a column name."""
    if shape.form is not Form.LEAF:
        return str(shape.form)
    arrow_type = shape.type
    if pa.types.is_decimal128(arrow_type):
        return f"decimal_{arrow_type.precision}_{arrow_type.scale}"
    if pa.types.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz else "local_timestamp"
    if pa.types.is_fixed_size_binary(arrow_type):
        return f"fixed_{arrow_type.byte_width}"
    return _SHORT_NAMES.get(str(arrow_type), str(arrow_type)).replace("[", "_").strip("]")


_SHORT_NAMES = {
    "int32": "int",
    "int64": "long",
    "halffloat": "float",
    "date32[day]": "date",
    "time64[us]": "time",
    "bool": "boolean",
}
