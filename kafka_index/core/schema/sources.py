"""The sources of schemas: a topic of the input, files, or a running registry."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kafka_index.core.errors import InputError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.schema.folder import schemas_of_folder
from kafka_index.core.schema.registry import Schemas
from kafka_index.core.schema.rest import schemas_of_url
from kafka_index.core.schema.schemas_topic import SCHEMAS_TOPIC, schemas_of_dump

#: The schemas of the topic ``_schemas`` in the input; ``dump:NAME`` names another topic.
FROM_DUMP = "dump"
_URL = re.compile(r"https?://", re.IGNORECASE)


def open_schemas(
    source: str, inputs: Sequence[str], budget: DecompressionBudget | None = None
) -> Schemas:
    """Read the schemas of a source: ``dump``, a folder, a file, or the URL of a registry.

    Raises `InputError` if there are no schemas, and `ReadError` if a registry does not respond.
    """
    refuse_passwords([source])
    if _URL.match(source):
        return schemas_of_url(source)
    kind, separator, topic = source.partition(":")
    if kind != FROM_DUMP or (separator and not topic):
        return schemas_of_folder(source)
    budget = budget or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    try:
        return schemas_of_dump(inputs, budget, topic or SCHEMAS_TOPIC)
    except InputError as error:
        if is_retriable(error):
            raise
        raise InputError(
            f"the input has no schemas: {error}",
            hint="give --schemas a folder of schemas or the URL of a registry",
        ) from error
