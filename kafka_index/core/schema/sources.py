"""The places that schemas come from."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.schema.registry import Schemas
from kafka_index.core.schema.schemas_topic import schemas_of_dump

#: The schemas of the topic ``_schemas`` in the input.
FROM_DUMP = "dump"


def open_schemas(
    source: str, inputs: Sequence[str], budget: DecompressionBudget | None = None
) -> Schemas:
    """Read the schemas of a source: ``dump``, a folder, a file or the URL of a registry.

    Raises `InputError` if there is no such source or it cannot be read.
    """
    if source == FROM_DUMP:
        return schemas_of_dump(inputs, budget or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    raise ConfigError("schemas are not there", expected="dump", found=source)
