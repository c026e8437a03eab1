"""``dump``: the contents of a partition's files, as a table or as JSON lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable

import click

from kafka_index.cli.decoded_records import decoder_of
from kafka_index.cli.dump_files import DumpedFile, dumped_files
from kafka_index.cli.dump_index import dump_offset_index, dump_time_index
from kafka_index.cli.dump_log import dump_log
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.dump_records import dump_records
from kafka_index.cli.dump_state import dump_leader_epochs, dump_snapshot, dump_transaction_index
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Decorator, command, max_decompressed_option, refuse_job
from kafka_index.cli.record_text import FORMS, RecordText
from kafka_index.cli.terminal import print_error
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kafka_index.records.decompression import shared_budget

_HELP = """Print the contents of each FILE: a row per record batch of a .log, or per record with
    --records; per entry of an .index, .timeindex or .txnindex; per producer of a .snapshot; per
    epoch of a leader-epoch-checkpoint. Offsets are absolute; the base offset is taken from the file
    name, which may also end in .swap, .cleaned or .deleted. Files are opened read-only. A FILE may
    be a URI (s3://, gs://, abfs://, hdfs://), or a glob of URIs in quotes.

    A log is read as far as a broker's recovery would keep it, and the last line reports why it ends
    there. Zeros after the entries of a preallocated index are counted, not printed.

    Keys and values of records are printed as text where they are UTF-8, in quotes and with escapes,
    otherwise as hex digits: 0x00ff, or {"hex": "00ff"} in JSON. Records of Kafka's own topics, such
    as __consumer_offsets, are printed decoded, unless --keys or --values are given; in JSON, beside
    the bytes. Credentials and configurations that may be secret are not printed.

    Exit codes: 0, the files are sound; 1, a file is damaged: its sound part is printed, and a line
    on stderr reports the damage; 2, wrong usage, or an unknown kind of file; 3, a file cannot be
    read because of permission, disk or memory; 70, an internal error.

    \b
    Examples:
      kafka-index dump /dump/orders-0/00000000000000000000.log
      kafka-index dump --records --values none /dump/orders-0/00000000000000000000.log
      kafka-index dump --json /dump/orders-0/*.timeindex | head
      kafka-index dump 's3://backup/broker-1/orders-0/*.index'
    """

_KINDS: dict[str, Callable[[DumpedFile, DumpOutput], KafkaIndexError | None]] = {
    OFFSET_INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
}


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``dump`` command, which does not run as a job.

    Parameters
    ----------
    as_job : bool
        Must be false.
    """
    refuse_job("dump", as_job=as_job)

    def dump(
        files: tuple[str, ...],
        as_json: bool,  # noqa: FBT001, because click passes options by name
        no_verify_crc: bool,  # noqa: FBT001, because click passes options by name
        records: bool,  # noqa: FBT001, because click passes options by name
        keys: str | None,
        values: str | None,
        max_decompressed_bytes: int | None,
        verbose: bool,  # noqa: ARG001, FBT001, because the entry point acts on it
    ) -> int:
        if not records and (keys or values):
            raise click.UsageError("--keys and --values require --records")

        budget = shared_budget(max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES)

        def dump_one_log(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
            verify_crc = not no_verify_crc
            if not records:
                return dump_log(file, output, verify_crc=verify_crc)
            decode = decoder_of(file.path)
            text = RecordText(as_json=as_json, keys=keys, values=values, decode=decode)
            return dump_records(file, output, text, verify_crc=verify_crc, budget=budget)

        if isinstance(sys.stdout, io.TextIOWrapper):
            # Records and paths may contain characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        kinds = {LOG_SUFFIX: dump_one_log, **_KINDS}
        known = dumped_files(files, kinds)
        if records:
            _refuse_others_than_logs(known)
        output = DumpOutput(sys.stdout, as_json=as_json)
        codes = []
        for file in known:
            try:
                damage = kinds[file.kind](file, output)
            except KafkaIndexError as error:
                damage = error
            sys.stdout.flush()
            if damage is not None:
                print_error(str(damage))
                codes.append(ExitCode.of_part(retriable=is_retriable(damage)))
        return ExitCode.first(codes)

    return command(dump, _options(), help_text=_HELP, usage="[OPTIONS]")


def _options() -> list[Decorator]:
    return [
        click.argument("files", nargs=-1, required=True, metavar="FILE..."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines."),
        click.option(
            "--no-verify-crc", is_flag=True, help="Do not verify the checksums of a .log."
        ),
        click.option("--records", is_flag=True, help="Print a line per record of a .log."),
        click.option("--keys", type=click.Choice(FORMS), help="With --records.  [default: text]"),
        click.option(
            "--values",
            type=click.Choice(FORMS),
            help="With --records; headers too.  [default: text]",
        ),
        max_decompressed_option(),
        click.option("--verbose", "-v", is_flag=True, help="Print tracebacks of errors."),
    ]


def _refuse_others_than_logs(files: Iterable[DumpedFile]) -> None:
    for file in files:
        if file.kind != LOG_SUFFIX:
            raise InputError("--records requires a .log", path=file.path)
