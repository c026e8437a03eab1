"""The request of ``schemas``."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.core.job.request import (
    CommandSpec,
    FlagKind,
    Group,
    PathKind,
    TextKind,
    parameter,
)
from kafka_index.core.parameters import (
    RecordRequest,
    schema_context_parameter,
    schemas_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasRequest(RecordRequest):
    """Parameters of a list of schemas."""

    schemas: str = schemas_parameter()
    schema_context: str = schema_context_parameter()
    subject: str | None = parameter(
        TextKind("NAME"), Group.SELECTION, "Only the versions of subject NAME.", default=None
    )
    skip_records: bool = parameter(
        FlagKind(),
        Group.SELECTION,
        "Do not read records. The result then does not contain the topics that use a schema.",
        default=False,
    )
    output: str | None = parameter(
        PathKind("DIR"),
        Group.OUTPUT,
        "Write the schemas to a new folder, which the option --schemas can read.",
        default=None,
    )


SCHEMAS = CommandSpec(
    "schemas",
    SchemasRequest,
    work="commands.schemas.schema_uses:list_schemas",
    help="""List the schemas of typed records, and the topics that use them.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. Logs are opened read-only.

    The schemas are read from the topic _schemas in the input, where Confluent's registry and
    Karapace store them. Deleted and replaced versions are listed until compaction removes them.
    --schemas selects another source. The records of all topics are read, and the schema ids in
    their keys, values and headers are counted. An id without a schema is a missing schema.

    \b
    Exit codes:
      0   Every schema that the records refer to was found.
      1   A schema is missing or unusable, or corrupt batches or records
          were skipped.
      2   Wrong usage, or the input has no schemas.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage="--input PATH... [OPTIONS]",
    examples="""\
kafka-index schemas --input /dump/broker-1
kafka-index schemas --input /dump/broker-1 --subject orders-value --json
kafka-index schemas --input /dump/broker-1 --output schemas
kafka-index schemas --input /dump/broker-1 --schemas https://registry:8081
""",
    has_json=True,
)
