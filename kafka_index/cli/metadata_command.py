"""``metadata``: what Kafka's own topics say of a cluster, as tables or as a summary."""

from __future__ import annotations

import sys

import click

from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.metadata_summary import print_summary
from kafka_index.cli.metadata_text import readable
from kafka_index.cli.options import command, max_decompressed_option, refuse_job
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_error
from kafka_index.cli.text import plural
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import is_retriable
from kafka_index.metadata import METADATA_TABLES, METADATA_TOPICS, ClusterMetadata, read_metadata
from kafka_index.metadata.directory import Faults
from kafka_index.records.decompression import shared_budget
from kafka_index.storage.report_file import ReportFile, check_report_path

_HELP = """Print what Kafka's own topics say of a cluster: __cluster_metadata (its newest snapshot,
    then its log), __consumer_offsets, __transaction_state and __remote_log_metadata.

    PATH is a broker's data directory, a metadata log directory, or a directory of one partition;
    several may be given. Files are opened read-only. Without --what, a summary is printed.

    Tables: topics, partitions, brokers; groups, offsets; transactions, producers; remote-segments.
    They are as of the last record in the files. Credentials are never read out, and
    configurations that may be secret have the value [hidden].

    Exit codes: 0, done; 1, records are damaged or missing: the rest is printed, and lines on stderr
    report the damage; 2, wrong usage, or the topics are not there; 3, a file cannot be read because
    of permission, disk or memory; 70, an internal error.
    """
_EXAMPLES = """
    \b
    Examples:
      kafka-index metadata /var/kafka/data
      kafka-index metadata /var/kafka/metadata --what topics
      kafka-index metadata /var/kafka/data --what offsets --json
      kafka-index metadata /var/kafka/data --what groups --output groups.parquet
    """
_ERRORS_SHOWN = 10


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``metadata`` command, which does not run as a job."""
    refuse_job("metadata", as_job=as_job)

    def metadata(
        paths: tuple[str, ...],
        what: str | None,
        as_json: bool,  # noqa: FBT001, because click passes options by name
        output: str | None,
        max_decompressed_bytes: int | None,
        verbose: bool,  # noqa: ARG001, FBT001, because the entry point acts on it
    ) -> int:
        if output is not None:
            if as_json:
                raise click.UsageError("--json and --output are mutually exclusive")
            if what is None:
                raise click.UsageError("--output requires --what")
            check_report_path(output)
        budget = shared_budget(max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES)
        topics = METADATA_TOPICS if what is None else METADATA_TABLES[what].topics
        found = read_metadata(paths, budget=budget, topics=topics)
        if what is None:
            print_summary(found, sys.stdout, as_json=as_json)
        elif output is None:
            _print_table(what, found, as_json=as_json)
        else:
            table = METADATA_TABLES[what].of(found)
            with ReportFile(output, table.schema) as file:
                file.write_table(table)
        sys.stdout.flush()
        return _report(found.faults)

    return command(
        metadata,
        [
            click.argument("paths", nargs=-1, required=True, metavar="PATH..."),
            click.option(
                "--what",
                type=click.Choice(list(METADATA_TABLES)),
                help="The table to print.  [default: a summary]",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON lines."),
            click.option(
                "--output",
                metavar="FILE",
                help="Write the table to FILE: .parquet, .arrow or .json (JSON lines).",
            ),
            max_decompressed_option(),
            click.option("--verbose", "-v", is_flag=True, help="Print tracebacks of errors."),
        ],
        help_text=_HELP + _EXAMPLES,
        usage="PATH... [--what TABLE] [OPTIONS]",
    )


def _print_table(what: str, found: ClusterMetadata, *, as_json: bool) -> None:
    table = METADATA_TABLES[what].of(found)
    output = DumpOutput(sys.stdout, as_json=as_json)
    for batch in table.to_batches():
        output.rows(batch if as_json else readable(batch))
    output.remark(plural(table.num_rows, "row"))


def _report(faults: Faults) -> ExitCode:
    """Print the faults; return the exit code."""
    run_summary().add_count("faults", faults.total)
    for fault in faults.first[:_ERRORS_SHOWN]:
        print_error(str(fault))
    more = faults.total - min(len(faults.first), _ERRORS_SHOWN)
    if more:
        print_error(f"and {plural(more, 'more fault')}")
    return ExitCode.first(ExitCode.of_part(retriable=is_retriable(fault)) for fault in faults.first)
