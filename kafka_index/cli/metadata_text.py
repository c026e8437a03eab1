"""Tables with lists and structures in them, as text for a terminal."""

from __future__ import annotations

import base64

import pyarrow as pa
from pyarrow import types

_SHORT = 40


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose nested columns are text: ``1,2,3`` and ``a=b``.

    Structures are shortened: a member of a group is its id, a partition its topic and number.
    """
    columns = [
        pa.array([_text(value) for value in column.to_pylist()], pa.string())
        if types.is_nested(column.type) or types.is_binary(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return ",".join(_item(item) for item in value) or None
    return str(value)


def _item(value: object) -> str:
    match value:
        case (name, content):
            return f"{name}={content}"
        case {"member_id": member}:
            return str(member)[:_SHORT]
        case {"topic": topic, "partition": partition}:
            return f"{topic}-{partition}"
        case {"leader_epoch": epoch, "start_offset": offset}:
            return f"{epoch}:{offset}"
    return str(value)
