"""Find records by key, value and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.find.request import FIND
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.log.choices import Decode, DecodeErrors, Isolation
from kafka_index.core.parameters import Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.find.result import FoundRecords


def find_records(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    key: str | bytes | None = None,
    key_regex: str | None = None,
    value_contains: str | bytes | None = None,
    where: str | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    limit: int | None = None,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
    decode: Decode | str | None = None,
    schemas: Path = "dump",
    value_schema: Path | None = None,
    decode_errors: DecodeErrors | str = DecodeErrors.KEEP,
    schema_context: str = ".",
) -> FoundRecords:
    """Find records by key, value and time, as ``kafka-index find`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        The output folder of an earlier build; by default index files are next to the logs.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    key : str or bytes, optional
        The key. As text it is UTF-8, or other bytes after ``hex:`` or ``base64:``.
    key_regex : str, optional
        An expression of RE2 that a part of the key matches.
    value_contains : str or bytes, optional
        A part of the value, given like `key`.
    where : str, optional
        A condition in SQL over ``topic``, ``partition``, ``offset``, ``timestamp``, ``key`` and
        ``header('NAME')``, as for `rewrite_dump`. With `decode`, also over members of keys and
        values, such as ``value.total > 100``.
    from_time, to_time : time, optional
        Only records whose timestamp is at or after `from_time`, and before `to_time`.
    limit : int, optional
        The maximum number of records. The search stops there.
    isolation : Isolation or str
        ``read_committed`` drops the records of aborted and open transactions.
    max_decompressed_bytes : int
        Memory limit for decompressed records, in bytes.
    threads : int, optional
        Number of parts of logs searched concurrently; by default one per core, two for remote
        inputs.
    follow_links : bool
        Whether to read index files and checkpoints that are links out of the input.
    decode : Decode or str, optional
        Decode the ``key``, the ``value`` or ``both`` to the types of their schemas. Additional
        columns have the schema, the type, and the error and bytes of rows that failed.
    schemas : path or str
        ``dump`` for the topic ``_schemas`` of `paths`, a folder or file of schemas, or the URL of a
        registry.
    value_schema : path, optional
        A file with the schema of values without a schema ID, such as ``orders.proto#shop.Order``.
    decode_errors : DecodeErrors or str
        If a key or value does not decode, ``keep`` returns its bytes, and ``fail`` raises an error.
    schema_context : str
        The context of the schema IDs in the records.

    Returns
    -------
    FoundRecords
        Record batches, which are searched while you iterate. Corrupt ranges are skipped, and
        reported by the result.

    Raises
    ------
    InputError
        Nothing is found, or a condition or a time is wrong.
    ConfigError
        No condition is given, or an argument is wrong.

    Examples
    --------
    >>> found = kafka_index.find_records("examples/dump", topics="payments", key_regex=".", limit=2)
    >>> [batch.num_rows for batch in found]
    [2]
    >>> found.ok
    True
    """
    result: FoundRecords = call(FIND, locals())
    return result
