"""``cat``: prints the records of a topic while they are being read."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_index.cli.command import RunOptions, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.cli.terminal import Verbosity
from kafka_index.commands.cat.request import CAT, CatRequest
from kafka_index.core.errors import ConfigError
from kafka_index.core.job.request import CommandSpec, FlagKind, Group, TextKind, parameter
from kafka_index.core.log.choices import BytesForm

if TYPE_CHECKING:
    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.cli.record_text import RecordPrinter
    from kafka_index.commands.cat.result import TopicRecords

_TEXT, _JSON = "text", "json"


class _FormatKind(TextKind):
    """``text``, ``json``, or a format string with kcat's tokens."""

    def convert(self, value: Any, name: str, now: int) -> str:
        text = super().convert(value, name, now)
        if text not in (_TEXT, _JSON) and "%" not in text:
            raise ConfigError(
                f"{name} is invalid",
                expected=r"text, json, or a template with tokens such as '%o %k %s\n'",
                found=text,
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCat(CatRequest):
    """A `cat` request with output options."""

    form: str = parameter(
        _FormatKind("text|json|FORMAT"),
        Group.OUTPUT,
        "Print a table, JSON lines, or a template with kcat's tokens.",
        "--format",
        "-f",
        default=_TEXT,
    )
    names_null: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Print null as NULL; requires a template in --format.",
        "--null",
        "-Z",
        default=False,
    )

    def __post_init__(self) -> None:
        super(PrintedCat, self).__post_init__()
        if self.names_null and not self.is_template:
            self.refuse("{names_null} requires a template in {form}")

    @property
    def is_template(self) -> bool:
        """Whether the format is a template with tokens."""
        return self.form not in (_TEXT, _JSON)


def _run(spec: CommandSpec, request: PrintedCat, options: RunOptions) -> int:
    from kafka_index.cli.record_template import prints_line_breaks  # noqa: PLC0415, slow to import
    from kafka_index.cli.record_text import print_records  # noqa: PLC0415, slow to import
    from kafka_index.cli.terminal import print_log  # noqa: PLC0415, slow to import

    text = _create_printer(request)
    is_quiet = options.verbosity is Verbosity.QUIET
    if request.is_template and not (is_quiet or prints_line_breaks(request.form)):
        print_log(r"the template of --format has no line break; append \n to the template")

    def print_rows(result: TopicRecords, _progress: ProgressListener) -> bool:
        print_records(result, text)
        return True

    return run_request(spec, request, options, print_rows=print_rows)


def _create_printer(request: PrintedCat) -> RecordPrinter:
    """Create the formatter, and configure the error handler of stdout for its output."""
    from kafka_index.cli.record_template import BYTES_AS_TEXT, RecordTemplate  # noqa: PLC0415, slow to import
    from kafka_index.cli.record_text import PartitionedRecordText  # noqa: PLC0415, slow to import
    from kafka_index.cli.terminal import escape_on_stdout  # noqa: PLC0415, slow to import

    if not request.is_template:
        escape_on_stdout()
        return PartitionedRecordText(as_json=request.form == _JSON, values=BytesForm.TEXT)
    template = RecordTemplate(
        request.form, names_null=request.names_null, is_terminal=sys.stdout.isatty()
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=BYTES_AS_TEXT)
    return template


make_command = partial(derive, replace(CAT, request=PrintedCat), run=_run)
