"""List the schemas of typed records, and the topics that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.schemas.request import SCHEMAS
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.schemas.result import SchemaList


def read_schemas(
    paths: Paths,
    *,
    schemas: Path = "dump",
    schema_context: str = ".",
    subject: str | None = None,
    skip_records: bool = False,
    output: Path | None = None,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> SchemaList:
    """List the schemas of typed records, as ``kafka-index schemas`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    schemas : path
        The source of the schemas: ``dump`` for the topic ``_schemas`` of the input, ``dump:TOPIC``,
        a folder or file of schemas, or the URL of a schema registry.
    schema_context : str
        The context of the schema ids in the records.
    subject : str, optional
        Only the versions of this subject.
    skip_records : bool
        If true, the records of topics are not read, so the topics that use a schema are unknown.
    output : path, optional
        A new local folder for the schemas, which the parameter `schemas` accepts.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        The output folder of an earlier build; by default index files are next to the logs.
    topics : str, re.Pattern or list of str, optional
        Only read records of topics whose full name matches the regular expression, or is in the
        list.
    max_decompressed_bytes : int
        Memory limit for decompressed records, in bytes.
    threads : int, optional
        Number of parts of logs read concurrently; by default one per core, two for remote inputs.
    follow_links : bool
        Whether to read index files and checkpoints that are links out of the input.

    Returns
    -------
    SchemaList
        A row per version of a subject. A missing schema is part of the result, not an exception.

    Raises
    ------
    InputError
        Nothing is found, the input has no schemas, or the output overlaps the input.
    ReadError
        A schema registry does not respond.
    PublishError
        The output cannot be written.

    Examples
    --------
    >>> found = kafka_index.read_schemas("examples/typed")
    >>> found.ok
    True
    >>> found.to_arrow()["subject"].to_pylist()[:1]
    ['carts-value']
    """
    result: SchemaList = call(SCHEMAS, locals())
    return result
