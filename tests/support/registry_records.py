"""Records of ``_schemas`` as registries write them, and logs of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from kafka_index.core.cluster.metadata.decoding import LogRecord
from tests.support.record_tables import batch_of, write_partition

#: The key and the value of a record.
Written = tuple[bytes | None, bytes | None]


def _json(**members: object) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def schema_record(
    subject: str, version: int, schema_id: int, text: str = '"string"', **more: object
) -> Written:
    """A schema of a version; `more` are members of the value, such as ``deleted``."""
    key = _json(keytype="SCHEMA", subject=subject, version=version, magic=1)
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text}
    return key, _json(**value, **{"deleted": False, **more})


def hard_delete(subject: str, version: int, value: bytes | None = None) -> Written:
    """The deletion of a version for good: null, or 0 bytes as Karapace writes it."""
    return _json(keytype="SCHEMA", subject=subject, version=version, magic=1), value


def delete_subject(subject: str, version: int) -> Written:
    """The soft deletion of the versions of a subject up to one."""
    key = _json(keytype="DELETE_SUBJECT", subject=subject, magic=0)
    return key, _json(subject=subject, version=version)


def setting(keytype: str, subject: str | None, **value: object) -> Written:
    """A ``CONFIG`` or ``MODE`` record; without a value its deletion."""
    key = {"keytype": keytype, **({} if subject is None else {"subject": subject}), "magic": 0}
    return _json(**key), _json(**value) if value else None


def log_records(records: Iterable[Written]) -> list[LogRecord]:
    """Records with ascending offsets."""
    return [
        LogRecord(offset, 1000 + offset, key, value, -1, is_control=False)
        for offset, (key, value) in enumerate(records)
    ]


def write_topic(root: Path, topic: str, records: Sequence[Written], base_offset: int = 0) -> Path:
    """Write a log of partition 0, a batch a record; return the root."""
    entries = [
        batch_of(base_offset + number, [(1000 + number, key, value)])
        for number, (key, value) in enumerate(records)
    ]
    write_partition(root, {base_offset: b"".join(entries)}, f"{topic}-0")
    return root


#: Members of a JSON Schema that SQL must quote, and one with a dot.
QUOTED_MEMBERS = ("first name", "order-id", "größe", "a.b")


def write_quoted_members(root: Path) -> Path:
    """Write the topic ``people``, whose JSON values have members with `QUOTED_MEMBERS`."""
    properties = {name: {"type": "integer"} for name in QUOTED_MEMBERS}
    schema = json.dumps({"title": "Person", "type": "object", "properties": properties})
    write_topic(root, "_schemas", [schema_record("people-value", 1, 1, schema, schemaType="JSON")])
    values = [_json(**dict.fromkeys(QUOTED_MEMBERS, number)) for number in range(3)]
    return write_topic(root, "people", [(None, b"\0\0\0\0\1" + value) for value in values])


def write_schema_next_to(path: Path) -> Path:
    """Write a file with a schema next to a path, for commands over dumps without ``_schemas``."""
    schema = path.parent / "schema.avsc"
    schema.write_text('"string"')
    return schema
