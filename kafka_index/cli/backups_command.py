"""``backups``: the group of the commands that look after a repository of backups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.options import argument, command, flag, option
from kafka_index.cli.shared_options import Detail, detail_options, report_option
from kafka_index.core.errors import help_page
from kafka_index.core.job.request import Group

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_index.core.job.result import TableResult

_GROUP_HELP = """Look after a repository of backups: list its runs, check what is stored, and expire
    runs.

    `kafka-index backup` makes runs; `restore` and every command that reads logs take a run as
    `--input backup:URI` (the newest), `backup:URI@TIME` or `backup:URI@RUN`.
    """
_LIST_HELP = """Print the runs of a repository, and what a restore would lose now.

    URI is the --output of `kafka-index backup`. A run is complete when all of its brokers have put
    their manifests; an inconsistent one is complete too, but its brokers did not cut together, so
    that transactions and groups may differ between them. New bytes are what the run added, bytes
    what it names. The gap is the time since the complete run before it.

    Exit codes: 0, done; 1, a manifest is damaged; 2, wrong usage, or there is no repository; 3, it
    cannot be read because of permission, disk, network or memory; 70, an internal error.
    """
_VERIFY_HELP = """Check that all that the manifests of a repository name is there and as it was.

    Every object is looked for by its name and size, which costs a listing. Each object that is read
    has to have the hash of its manifest, and whole batches with right checksums. --sample 5 reads
    about 5 % of the objects, drawn anew each time; --sample 0 reads none.

    --repair marks what is missing or altered. The next backup of its broker compares the log with
    the hash, and stores the object again.

    Exit codes: 0, all is as it was; 1, something is missing or altered; 2, wrong usage, or there is
    no such repository or run; 3, something cannot be read because of permission, disk, network or
    memory; 70, an internal error.
    """
_EXPIRE_HELP = """Expire the runs that nothing keeps, and delete what only expired runs needed.

    The newest complete run is always kept, and the newest of each broker. A run leaves the list at
    once; its objects are deleted by a later call, a day after, so that whoever reads it or builds
    on it comes to an end. Backups may run meanwhile.

    Exit codes: 0, done; 1, a manifest is damaged, and nothing was deleted; 2, wrong usage, or there
    is no repository; 3, it cannot be read or written because of permission, disk, network or
    memory; 70, an internal error.
    """
_LIST_EXAMPLES = "kafka-index backups list s3://backups/kafka --last 10\n"
_VERIFY_EXAMPLES = """\
kafka-index backups verify s3://backups/kafka --sample 5
kafka-index backups verify /mnt/backups --run 20261120T120000.000Z
kafka-index backups verify s3://backups/kafka --repair
"""
_EXPIRE_EXAMPLES = """\
kafka-index backups expire s3://backups/kafka --dry-run
kafka-index backups expire /mnt/backups --keep-last 24 --keep-daily 30
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of ``backups list``."""

    uris: tuple[str, ...] = argument("URI")
    last: int | None = option(
        "--last",
        group=Group.SELECTION,
        type=click.IntRange(min=1),
        metavar="N",
        help="Read only the last N runs.  [default: all]",
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print JSON lines.")
    report: str | None = report_option("a row per run")
    detail: Detail = detail_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The options of ``backups verify``."""

    uris: tuple[str, ...] = argument("URI")
    run: str | None = option(
        "--run",
        group=Group.SELECTION,
        metavar="RUN",
        help="Check this run, a name or a time.  [default: all runs]",
    )
    sample: float = option(
        "--sample",
        group=Group.SELECTION,
        type=click.FloatRange(0, 100),
        default=100.0,
        metavar="P",
        help="Read P percent of the objects.",
    )
    repair: bool = flag(
        "--repair",
        group=Group.BEHAVIOUR,
        help="Mark missing and altered objects. The next backup stores them again, if the logs "
        "still contain their batches.",
    )
    as_json: bool = flag(
        "--json", group=Group.OUTPUT, help="Print JSON lines of what is not sound."
    )
    report: str | None = report_option("a row per object")
    detail: Detail = detail_options()


def _kept(name: str, default: int, help_text: str) -> Any:
    """Return the option that says how many runs are kept."""
    return option(
        name,
        group=Group.SELECTION,
        type=click.IntRange(min=0),
        default=default,
        metavar="N",
        help=help_text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """The options of ``backups expire``."""

    uris: tuple[str, ...] = argument("URI")
    keep_last: int = _kept("--keep-last", 1, "Keep the last N complete runs.")
    keep_daily: int = _kept(
        "--keep-daily",
        7,
        "Keep the last complete run of each of the last N days (UTC) that have one.",
    )
    keep_weekly: int = _kept("--keep-weekly", 4, "Keep that of each of the last N weeks.")
    keep_monthly: int = _kept("--keep-monthly", 12, "Keep that of each of the last N months.")
    dry_run: bool = flag(
        "--dry-run", group=Group.BEHAVIOUR, help="Change nothing, only say what would."
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print JSON lines.")
    report: str | None = report_option("a row per run")
    detail: Detail = detail_options()


def _list(options: ListOptions) -> int:
    from kafka_index.commands.backup.repository_check import list_runs  # noqa: PLC0415, slow to import

    found = list_runs(_root(options.uris), options.last)
    return _show(found, found.rows, options)


def _verify(options: VerifyOptions) -> int:
    from kafka_index.commands.backup.repository_check import verify_backup  # noqa: PLC0415, slow to import

    found = verify_backup(_root(options.uris), options.run, options.sample, repair=options.repair)
    return _show(found, found.faults, options)


def _expire(options: ExpireOptions) -> int:
    from kafka_index.commands.backup.expiration import Retention, expire_backup  # noqa: PLC0415, slow to import

    retention = Retention(
        last=options.keep_last,
        daily=options.keep_daily,
        weekly=options.keep_weekly,
        monthly=options.keep_monthly,
    )
    found = expire_backup(_root(options.uris), retention, dry_run=options.dry_run)
    return _show(found, found.rows, options)


def _root(uris: tuple[str, ...]) -> str:
    from kafka_index.core.fs.paths import absolute_path  # noqa: PLC0415, slow to import

    if len(uris) != 1:
        raise click.UsageError("give one repository, the --output of kafka-index backup")
    return absolute_path(uris[0])


def _show(
    found: TableResult, shown: pa.Table, options: ListOptions | VerifyOptions | ExpireOptions
) -> int:
    """Print rows and the verdict, write the report; return the exit code."""
    from kafka_index.cli.dump_output import TablePrinter  # noqa: PLC0415, slow to import
    from kafka_index.cli.exit_status import run_summary  # noqa: PLC0415, slow to import
    from kafka_index.core.job.result import RunOutcome  # noqa: PLC0415, slow to import
    from kafka_index.core.output.report_file import open_report  # noqa: PLC0415, slow to import

    run_summary().command = found.command
    as_json, is_done = options.as_json, found.outcome is RunOutcome.DONE
    with open_report(options.report, found.rows.schema) as file:
        if file is not None:
            file.write_table(found.rows)
        run_summary().add_result(found)
        output = TablePrinter(options.detail.stdout if is_done else sys.stdout, as_json=as_json)
        for batch in (shown if as_json else _readable(shown)).to_batches():
            output.rows(batch)
        output.remark(found.headline)
        sys.stdout.flush()
    return found.outcome.exit_code


def _readable(rows: pa.Table) -> pa.Table:
    """Return rows for people: sizes and spans with units, brokers as one text, no empty columns."""
    import pyarrow as pa  # noqa: PLC0415, slow to import

    from kafka_index.core.format.human import format_bytes, format_seconds  # noqa: PLC0415, as above

    def text(name: str, value: Any) -> str | None:
        if value is None:
            return None
        if name.endswith("_ms"):
            return format_seconds(value / 1000)
        if name.endswith("bytes"):
            return format_bytes(value)
        if isinstance(value, list):
            return ",".join(map(str, value)) or None
        return value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else str(value)

    found = {
        name.removesuffix("_ms"): [text(name, value) for value in rows[name].to_pylist()]
        for name in rows.column_names
        if name != "opened"
    }
    kept = {name: own for name, own in found.items() if any(each is not None for each in own)}
    return pa.table({name: pa.array(own, pa.string()) for name, own in kept.items()})


def _command(
    name: str, kind: type, run: Callable[[Any], int], help_text: str, examples: str
) -> click.Command:
    return command(
        name,
        kind,
        run,
        as_job=False,
        help_text=help_text,
        usage="[OPTIONS]",
        examples=examples,
        has_links=False,
        page="backup",
    )


def make_command(*, as_job: bool) -> click.Group:
    """Return the group; none of its commands runs as a job."""
    if as_job:
        raise ValueError("backups does not run as a job")
    commands = [
        _command("list", ListOptions, _list, _LIST_HELP, _LIST_EXAMPLES),
        _command("verify", VerifyOptions, _verify, _VERIFY_HELP, _VERIFY_EXAMPLES),
        _command("expire", ExpireOptions, _expire, _EXPIRE_HELP, _EXPIRE_EXAMPLES),
    ]
    return click.Group(
        "backups",
        commands,
        help=_GROUP_HELP,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=f"The page about it: {help_page('backup')}",
        subcommand_metavar="COMMAND [ARGS]...",
    )
