"""Dump of the small text files of a broker: offset checkpoints, and files of properties."""

from __future__ import annotations

import os

import pyarrow as pa

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.text import plural
from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.java_texts import properties_of
from kafka_index.layout.names import META_PROPERTIES, PARTITION_METADATA
from kafka_index.storage.log_directory import read_checkpoint_text

#: Files of names and values.
PROPERTY_FILES = (META_PROPERTIES, PARTITION_METADATA)


def dump_offset_checkpoint(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print the offsets of a checkpoint of a data directory; return why it is malformed, if so."""
    try:
        offsets = parse_offset_checkpoint(_text(file), path=file.path)
    except InputError as error:
        output.begin(f"{file.path}: offset checkpoint")
        output.fault(error)
        return error
    output.begin(f"{file.path}: offset checkpoint, {plural(len(offsets), 'entry', 'entries')}")
    columns = [
        pa.array([each.topic for each in offsets], pa.string()),
        pa.array([each.partition for each in offsets], pa.int32()),
        pa.array(list(offsets.values()), pa.int64()),
    ]
    output.rows(pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset"]))
    return None


def dump_properties(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print ``meta.properties`` or ``partition.metadata``; return what a broker refuses in it."""
    from kafka_index.startup.directory_files import read_topic_id  # noqa: PLC0415, slow to import

    text = _text(file)
    is_metadata = file.kind == PARTITION_METADATA
    pairs = properties_of(text.replace(":", "=") if is_metadata else text)
    output.begin(f"{file.path}: {'topic of the partition' if is_metadata else 'properties'}")
    columns = [pa.array(list(pairs), pa.string()), pa.array(list(pairs.values()), pa.string())]
    output.rows(pa.RecordBatch.from_arrays(columns, ["name", "value"]))
    if not is_metadata:
        return None
    try:
        read_topic_id(os.path.dirname(file.path))
    except KafkaIndexError as error:
        output.fault(error)
        return error
    return None


def _text(file: DumpedFile) -> str:
    text = read_checkpoint_text(file.path)
    if text is None:
        raise InputError("no such file", path=file.path)
    return text
