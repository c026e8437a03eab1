"""Several writer schemas of a topic as one type of Arrow.

Each schema has a `Shape`: its Arrow type with the names, aliases and numbers by which its fields
are found again in other versions. `align` joins shapes, in the order of their versions, to one
shape and a `Plan` for each of them. A plan is both what a decoder has to build (`Plan.selection`)
and how its arrays become those of the table (`Plan.convert`).

Fields match by name, then by the aliases of newer schemas (Avro), or by number (Protobuf); the
newest name counts. Where types can be widened they are; otherwise the later type has a column of
its own, such as ``x__string``. No field is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeAlias

import pyarrow as pa

from kafka_index.core.errors import BadSchemaError, InputError
from kafka_index.core.schema.bodies import with_children

#: The members of a struct that are wanted, by name; under "" what is wanted of the elements of a
#: list or the values of a map. None for all.
Selection: TypeAlias = "Mapping[str, Selection] | None"

#: The most types in a schema, and how deep they may be nested: Arrow passes on 64 levels.
MOST_TYPES, _MAX_DEPTH = 50_000, 56
#: The names of the elements of lists, as Parquet has them.
ELEMENT = "element"


class Form(StrEnum):
    """The form of a value."""

    LEAF = "leaf"
    STRUCT = "struct"
    #: A struct with a member for each branch of a union.
    UNION = "union"
    LIST = "array"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct; the element of a list, or key and value of a map, have no name.

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
    """The Arrow type of a value, with what its members are matched by."""

    form: Form
    type: pa.DataType
    members: tuple[Member, ...] = ()
    #: The types in it, and the levels of Arrow that they are nested in.
    size: int = 1
    depth: int = 0

    @classmethod
    def of_leaf(cls, kind: pa.DataType) -> Shape:
        """Return the shape of a value without members."""
        return cls(Form.LEAF, kind)

    @classmethod
    def of_struct(cls, members: Sequence[Member], form: Form = Form.STRUCT) -> Shape:
        """Return the shape of a struct or a union."""
        fields = [pa.field(member.name, member.shape.type) for member in members]
        return cls._of(form, pa.struct(fields), *members)

    @classmethod
    def of_list(cls, element: Shape) -> Shape:
        """Return the shape of a list."""
        kind = pa.list_(pa.field(ELEMENT, element.type))
        return cls._of(Form.LIST, kind, Member("", element))

    @classmethod
    def of_map(cls, key: Shape, value: Shape) -> Shape:
        """Return the shape of a map."""
        kind = pa.map_(key.type, pa.field("value", value.type))
        return cls._of(Form.MAP, kind, Member("", key), Member("", value))

    @classmethod
    def _of(cls, form: Form, kind: pa.DataType, *members: Member) -> Shape:
        inner = [member.shape for member in members]
        levels = 2 if form is Form.MAP else 1
        depth = levels + max((shape.depth for shape in inner), default=0)
        return cls(form, kind, members, 1 + sum(shape.size for shape in inner), depth)

    def checked(self) -> Self:
        """Return the shape; raises `BadSchemaError` for one of too many types.

        The types of a schema may be used more than once, and so double with each level.
        """
        if self.size > MOST_TYPES:
            raise BadSchemaError("a schema has too many types", expected=f"{MOST_TYPES} at most")
        if self.depth > _MAX_DEPTH:
            raise BadSchemaError(
                "a schema is nested too deeply", expected=f"{_MAX_DEPTH} levels at most"
            )
        return self

    @property
    def is_struct(self) -> bool:
        """Whether its members have names."""
        return self.form in (Form.STRUCT, Form.UNION)

    def select(self, selection: Selection) -> Shape:
        """Return the shape with the members that are wanted only."""
        if selection is None:
            return self
        if self.is_struct:
            return Shape.of_struct(
                [
                    replace(member, shape=member.shape.select(selection[member.name]))
                    for member in self.members
                    if member.name in selection
                ],
                self.form,
            )
        if self.form is Form.LIST:
            return Shape.of_list(self.members[0].shape.select(selection[""]))
        if self.form is Form.MAP:
            key, value = (member.shape for member in self.members)
            return Shape.of_map(key, value.select(selection[""]))
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """From the arrays of a writer schema to those of the table.

    Attributes
    ----------
    target : Shape
        The shape in the table.
    sources : tuple of (str or None, Plan or None)
        For each member of the target: the name of the writer's member, and its plan; None for a
        member that the writer does not have.
    is_same : bool
        Whether the arrays can stay as they are.
    """

    target: Shape
    sources: tuple[tuple[str | None, Plan | None], ...] = ()
    is_same: bool = False

    @property
    def selection(self) -> Selection:
        """The members of the writer's schema that are needed."""
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
        """Return an array of the writer's shape in the shape of the table."""
        if self.is_same:
            return array
        target = self.target
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), target.type)
        if target.form is Form.LEAF:
            return array.cast(target.type)
        if target.is_struct:
            return self._struct(array)
        plans = [plan for _, plan in self.sources if plan is not None]
        if target.form is Form.LIST:
            return with_children(array, target.type, [plans[0].convert(array.values)])
        pair = [plans[0].convert(array.keys), plans[1].convert(array.items)]
        fields = [target.type.key_field, target.type.item_field]
        entries = pa.StructArray.from_arrays(pair, fields=fields)
        return with_children(array, target.type, [entries])

    def _struct(self, array: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(array), member.shape.type)
            if name is None or plan is None
            else plan.convert(array.field(name))
            for (name, plan), member in zip(self.sources, self.target.members, strict=True)
        ]
        return with_children(array, self.target.type, children)

    def select(self, selection: Selection) -> Plan:
        """Return the plan for the members of the table that are wanted."""
        if selection is None:
            return self
        target = self.target.select(selection)
        if not self.sources:
            return Plan(target, (), self.is_same)
        if target.is_struct:
            sources = tuple(
                (name, None if plan is None else plan.select(selection[member.name]))
                for (name, plan), member in zip(self.sources, self.target.members, strict=True)
                if member.name in selection
            )
        else:
            *keys, (_, plan) = self.sources
            sources = (*keys, ("", None if plan is None else plan.select(selection[""])))
        return Plan(target, sources, self.is_same and _all_same(sources))


def _all_same(sources: Iterable[tuple[str | None, Plan | None]]) -> bool:
    return all(plan is not None and plan.is_same for _, plan in sources)


class _ConflictError(Exception):
    """Two shapes that no type holds."""


def align(shapes: Sequence[Shape]) -> tuple[Shape, list[Plan]]:
    """Join the shapes of versions, the oldest first; return the shape of all, and a plan for each.

    The shapes are records or messages of a name, or values that are not; raises `InputError` if
    they cannot be of one column.
    """
    try:
        target, plans = _join(list(shapes))
    except _ConflictError as error:
        raise InputError(f"the schemas have types that cannot be joined: {error}") from error
    return target, plans


def _join(shapes: list[Shape]) -> tuple[Shape, list[Plan]]:
    """Return the shape that holds all, and a plan for each; raises `_ConflictError`."""
    forms = {shape.form for shape in shapes if not pa.types.is_null(shape.type)}
    if len(forms) > 1:
        raise _ConflictError(" and ".join(sorted(forms)))
    form = next(iter(forms), Form.LEAF)
    if form is Form.LEAF:
        kind = shapes[0].type
        for shape in shapes[1:]:
            kind = _wider(kind, shape.type)
        target = Shape.of_leaf(kind)
        return target, [Plan(target, (), shape.type == kind) for shape in shapes]
    known = [shape for shape in shapes if not pa.types.is_null(shape.type)]
    if form in (Form.STRUCT, Form.UNION):
        target, plans = _join_structs(known, form)
    else:
        joined = [_join([shape.members[at].shape for shape in known]) for at in _parts(form)]
        parts = [part for part, _ in joined]
        target = Shape.of_list(parts[0]) if form is Form.LIST else Shape.of_map(*parts)
        plans = []
        for number, shape in enumerate(known):
            sources = tuple(("", found[number]) for _, found in joined)
            plans.append(Plan(target, sources, _all_same(sources) and shape.type == target.type))
    if len(known) == len(shapes):
        return target, plans
    given = iter(plans)
    return target, [
        _null_plan(target) if pa.types.is_null(shape.type) else next(given) for shape in shapes
    ]


def _parts(form: Form) -> range:
    return range(1) if form is Form.LIST else range(2)


def _null_plan(target: Shape) -> Plan:
    """Return the plan of a schema that has nulls only."""
    return Plan(target)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for pair in _WIDENINGS:
        if {one, other} == set(pair):
            return pair[1]
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other) and one.scale == other.scale:
        return one if one.precision > other.precision else other
    raise _ConflictError(f"{one} and {other}")


_WIDENINGS = (
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.uint64()),
    (pa.float32(), pa.float64()),
)


@dataclass(slots=True)
class _Column:
    """A column of the joined struct: the member of each version that has it."""

    members: dict[int, Member]
    shape: Shape
    plans: dict[int, Plan]
    name: str = ""

    def add(self, version: int, member: Member) -> bool:
        """Add the member of a version, if the types can be joined."""
        numbers = [*self.members, version]
        try:
            shape, plans = _join([*(one.shape for one in self.members.values()), member.shape])
        except _ConflictError:
            return False
        self.members[version] = member
        self.shape, self.plans = shape, dict(zip(numbers, plans, strict=True))
        return True


def _join_structs(shapes: list[Shape], form: Form) -> tuple[Shape, list[Plan]]:
    identities = _identities(shapes)
    fields: dict[object, list[_Column]] = {}
    for version, shape in enumerate(shapes):
        for member in shape.members:
            columns = fields.setdefault(identities[version, member.name], [])
            if not any(column.add(version, member) for column in columns):
                # Names that differ only in case are distinct at each depth.
                own, plans = _join([member.shape])
                columns.append(_Column({version: member}, own, {version: plans[0]}))
    _name_columns(fields)
    places = [{one.name: place for place, one in enumerate(shape.members)} for shape in shapes]
    columns = sorted(
        (column for found in fields.values() for column in found),
        key=lambda column: _place(column, places),
    )
    target = Shape.of_struct(
        [
            replace(
                column.members[max(column.members)],
                name=column.name,
                shape=column.shape,
            )
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
        plans.append(Plan(target, sources, _all_same(sources) and shape.type == target.type))
    return target, plans


def _identities(shapes: list[Shape]) -> dict[tuple[int, str], object]:
    """Return what each member is matched by: a number, or the newest of its names."""
    newer_name: dict[str, str] = {}
    for shape in reversed(shapes):
        for member in shape.members:
            for alias in member.aliases:
                newer_name.setdefault(alias, newer_name.get(member.name, member.name))
    found: dict[tuple[int, str], object] = {}
    for version, shape in enumerate(shapes):
        own = {member.name for member in shape.members}
        for member in shape.members:
            if member.number is not None:
                found[version, member.name] = member.number
                continue
            renamed = newer_name.get(member.name, member.name)
            # A schema that has both names has two fields.
            found[version, member.name] = member.name if renamed in own else renamed
    return found


def _place(column: _Column, places: list[dict[str, int]]) -> tuple[int, int]:
    """Return where a column stands: the fields of the newest version come first."""
    newest = max(column.members)
    return -newest, places[newest][column.members[newest].name]


def _name_columns(fields: Mapping[object, list[_Column]]) -> None:
    """Name columns, so that no two differ in case only; what is older keeps its name."""
    taken: set[str] = set()
    waiting: list[tuple[int, int, _Column]] = []
    for columns in fields.values():
        waiting += [(min(column.members), at, column) for at, column in enumerate(columns)]
    newest_names = {
        id(column): max((max(one.members), one.members[max(one.members)].name) for one in columns)[
            1
        ]
        for columns in fields.values()
        for column in columns
    }
    for _, at, column in sorted(waiting, key=lambda one: one[:2]):
        name = newest_names[id(column)]
        if at:
            name = f"{name}__{_type_name(column.shape)}"
        number, free = 1, name
        while free.lower() in taken:
            number += 1
            free = f"{name}__{number}"
        taken.add(free.lower())
        column.name = free


def _type_name(shape: Shape) -> str:
    """Return the name of a type for the name of a column."""
    if shape.form is not Form.LEAF:
        return str(shape.form)
    kind = shape.type
    if pa.types.is_decimal128(kind):
        return f"decimal_{kind.precision}_{kind.scale}"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "local_timestamp"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed_{kind.byte_width}"
    return _SHORT_NAMES.get(str(kind), str(kind)).replace("[", "_").strip("]")


_SHORT_NAMES = {
    "int32": "int",
    "int64": "long",
    "halffloat": "float",
    "date32[day]": "date",
    "time64[us]": "time",
    "bool": "boolean",
}
