"""``metadata``: tables of Kafka's internal topics, printed or written to a file."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.cli.command import RunOptions, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.commands.metadata.request import METADATA, MetadataRequest
from kafka_index.core.job.request import CommandSpec, FlagKind, Group, PathKind, parameter

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.commands.metadata.read_tables import Metadata

_MEMBER_ID_CHARS = 40
_TIMESTAMP_MS = "_timestamp_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedMetadata(MetadataRequest):
    """A `metadata` request with output options."""

    as_json: bool = parameter(
        FlagKind(), Group.OUTPUT, "Print JSON lines.", "--json", default=False
    )
    output: str | None = parameter(
        PathKind("FILE"),
        Group.OUTPUT,
        "Write the table to FILE: .parquet, .arrow or .json (JSON lines).",
        default=None,
    )

    def __post_init__(self) -> None:
        super(PrintedMetadata, self).__post_init__()
        if self.output is None:
            return
        if self.as_json:
            self.refuse("{as_json} and {output} are mutually exclusive")
        if self.what is None:
            self.refuse("{output} requires {what}")
        from kafka_index.core.output.report_file import check_report_path  # noqa: PLC0415, slow to import

        check_report_path(self.output)


def _run(spec: CommandSpec, request: PrintedMetadata, options: RunOptions) -> int:
    def print_rows(result: Metadata, _progress: ProgressListener) -> bool:
        from kafka_index.cli.dump_output import TablePrinter  # noqa: PLC0415, slow to import
        from kafka_index.core.output.report_file import ReportFile  # noqa: PLC0415, slow to import

        stdout = options.verbosity.stdout
        if request.output is not None:
            with ReportFile(request.output, result.rows.schema) as file:
                file.write_table(result.rows)
        elif request.what is not None:
            table = result.rows if request.as_json else _format_columns(result.rows)
            output = TablePrinter(stdout, as_json=request.as_json)
            for batch in table.to_batches():
                output.rows(batch)
            output.note_hidden_columns()
        elif request.as_json:
            stdout.write(json.dumps(result.overview) + "\n")
        else:
            return False
        return True

    return run_request(spec, request, options, print_rows=print_rows)


def _format_columns(table: pa.Table) -> pa.Table:
    """Convert times to ISO 8601, and nested columns to text.

    A list is ``1,2,3``, a map ``a=b``, a group member its ID, and a partition its topic and number.
    """
    import pyarrow as pa  # noqa: PLC0415, slow to import
    from pyarrow import types  # noqa: PLC0415, slow to import

    for number, name in enumerate(table.column_names):
        column_name, column_type = name, table[name].type
        if name.endswith(_TIMESTAMP_MS):
            column_name = name.removesuffix(_TIMESTAMP_MS) + "_time"
            texts = pa.array(map(_format_timestamp, table[name].to_pylist()), pa.string())
        elif types.is_nested(column_type) or types.is_binary(column_type):
            texts = pa.array(map(_format_cell, table[name].to_pylist()), pa.string())
        else:
            continue
        table = table.set_column(number, column_name, texts)
    return table


def _format_timestamp(timestamp_ms: int | None) -> str | None:
    from kafka_index.cli.record_text import readable_time  # noqa: PLC0415, slow to import

    return None if timestamp_ms is None else readable_time(timestamp_ms)


def _format_cell(value: object) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return ",".join(_format_item(item) for item in value) or None
    return str(value)


def _format_item(value: object) -> str:
    match value:
        case (name, content):
            return f"{name}={content}"
        case {"member_id": member}:
            return str(member)[:_MEMBER_ID_CHARS]
        case {"topic": topic, "partition": partition}:
            return f"{topic}-{partition}"
        case {"leader_epoch": epoch, "start_offset": offset}:
            return f"{epoch}:{offset}"
    return str(value)


make_command = partial(derive, replace(METADATA, request=PrintedMetadata), run=_run)
