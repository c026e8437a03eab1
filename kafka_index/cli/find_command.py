"""``find``: prints records while they are being found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.cli.command import RunOptions, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.commands.find.request import FIND, FindRequest
from kafka_index.core.job.request import ChoiceKind, CommandSpec, FlagKind, Group, parameter
from kafka_index.core.log.choices import BytesForm

if TYPE_CHECKING:
    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.commands.find.result import FoundRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedFind(FindRequest):
    """A `find` request with output options."""

    values: BytesForm = parameter(
        ChoiceKind(BytesForm),
        Group.OUTPUT,
        "How values and headers are printed.",
        default=BytesForm.TEXT,
    )
    as_json: bool = parameter(
        FlagKind(), Group.OUTPUT, "Print JSON lines.", "--json", default=False
    )
    fail_if_none: bool = parameter(
        FlagKind(), Group.BEHAVIOUR, "Exit with 1 if no record is found.", default=False
    )


def _run(spec: CommandSpec, request: PrintedFind, options: RunOptions) -> int:
    from kafka_index.cli.record_text import PartitionedRecordText, print_records  # noqa: PLC0415, slow to import
    from kafka_index.cli.terminal import escape_on_stdout  # noqa: PLC0415, slow to import
    from kafka_index.core.query.printed_records import PRINTED_COLUMNS  # noqa: PLC0415, slow to import

    is_empty = False
    escape_on_stdout()

    def print_rows(result: FoundRecords, progress: ProgressListener) -> bool:
        nonlocal is_empty
        text = PartitionedRecordText(as_json=request.as_json, values=request.values)
        print_records(result, text, progress.paused)
        is_empty = not result.counts["matches"]
        return True

    printed_request = replace(request, columns=PRINTED_COLUMNS)
    code = run_request(spec, printed_request, options, print_rows=print_rows)
    if is_empty and request.fail_if_none and code == ExitCode.DONE:
        run_summary().outcome = "no_match"
        return ExitCode.DAMAGE
    return code


make_command = partial(derive, replace(FIND, request=PrintedFind), run=_run)
