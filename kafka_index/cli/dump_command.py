"""``dump``: prints the contents of a partition's files as tables or JSON lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.cli.command import RunOptions, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.commands.dump.request import DUMP, DumpRequest
from kafka_index.core.job.request import ChoiceKind, CommandSpec, FlagKind, Group, parameter
from kafka_index.core.log.choices import BytesForm

if TYPE_CHECKING:
    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.commands.dump.result import DumpResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedDump(DumpRequest):
    """A `dump` request with output options."""

    wide: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Print all columns and full lines even on a terminal.",
        default=False,
    )
    as_json: bool = parameter(
        FlagKind(), Group.OUTPUT, "Print JSON lines.", "--json", default=False
    )
    keys: BytesForm | None = parameter(
        ChoiceKind(BytesForm),
        Group.OUTPUT,
        "How --records prints keys.  [default: text]",
        default=None,
    )
    values: BytesForm | None = parameter(
        ChoiceKind(BytesForm),
        Group.OUTPUT,
        "How --records prints values and headers.  [default: text]",
        default=None,
    )

    def __post_init__(self) -> None:
        super(PrintedDump, self).__post_init__()
        if not self.records and (self.keys or self.values):
            self.refuse("{keys} and {values} require {records}")


def _run(spec: CommandSpec, request: PrintedDump, options: RunOptions) -> int:
    from kafka_index.cli.dump_output import DumpPrinter  # noqa: PLC0415, slow to import
    from kafka_index.cli.terminal import escape_on_stdout  # noqa: PLC0415, slow to import

    escape_on_stdout()
    printer = DumpPrinter(
        options.verbosity.stdout,
        as_json=request.as_json,
        is_wide=request.wide,
        keys=request.keys,
        values=request.values,
    )

    def print_rows(result: DumpResult, _progress: ProgressListener) -> bool:
        result.print_rows(printer)
        return True

    return run_request(spec, request, options, print_rows=print_rows)


make_command = partial(derive, replace(DUMP, request=PrintedDump), run=_run)
