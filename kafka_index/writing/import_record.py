"""The record that an import leaves in each partition: which logs it wrote.

A partition whose logs are as its record says was written by an import and by nothing since: only
such a one may be overwritten. A broker ignores the file.
"""

from __future__ import annotations

import json
import os

from kafka_index.storage import publish_error
from kafka_index.writing.staging import signature_of

IMPORT_RECORD = ".import.kafka-index"
_VERSION = 1


def write_import_record(directory: str) -> None:
    """Record the logs of a partition directory.

    Raises
    ------
    PublishError
        The file cannot be written.
    """
    path = os.path.join(directory, IMPORT_RECORD)
    content = {"version": _VERSION, "logs": _sizes(directory)}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as error:
        raise publish_error(error, path, "write a file") from error


def is_import(directory: str) -> bool:
    """Return whether the logs of a partition are those that an import wrote."""
    try:
        with open(os.path.join(directory, IMPORT_RECORD), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return False
    return bool(found == {"version": _VERSION, "logs": _sizes(directory)})


def _sizes(directory: str) -> dict[str, int]:
    return {name: size for name, size, _ in signature_of(directory) or ()}
