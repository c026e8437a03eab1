"""``dump``: the contents of a partition's files, as a table or as JSON lines."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import click

from kafka_index.cli.decoded_records import decoder_of
from kafka_index.cli.dump_checkpoints import (
    PROPERTY_FILES,
    dump_offset_checkpoint,
    dump_properties,
)
from kafka_index.cli.dump_directory import dump_directory
from kafka_index.cli.dump_files import DumpedFile, dumped_files
from kafka_index.cli.dump_index import dump_offset_index, dump_time_index
from kafka_index.cli.dump_log import dump_log
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.dump_records import dump_records
from kafka_index.cli.dump_selection import Selection
from kafka_index.cli.dump_state import dump_leader_epochs, dump_snapshot, dump_transaction_index
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.numbers import Whole, moment
from kafka_index.cli.options import Decorator, command, max_decompressed_option, refuse_job
from kafka_index.cli.record_options import time_options, time_range
from kafka_index.cli.record_text import RecordText
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shown_bytes import FORMS
from kafka_index.cli.terminal import print_error
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_CHECKPOINTS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kafka_index.records.decompression import shared_budget
from kafka_index.stores import is_remote

_HELP = """Print the contents of each FILE: a row per record batch of a .log, or per record with
    --records; per entry of an .index, .timeindex or .txnindex; per producer of a .snapshot; per
    epoch of a leader-epoch-checkpoint. Offsets are absolute; the base offset is taken from the file
    name, which may also end in .swap, .cleaned or .deleted. Files are opened read-only. A FILE may
    be a URI (s3://, gs://, abfs://, hdfs://), or a glob of URIs in quotes. Checkpoints of offsets,
    meta.properties and partition.metadata are printed as they are. Of a directory, a line per
    segment is printed: offsets, times, bytes, batches, codecs and damage.

    Times are printed as such, in JSON in milliseconds. On a terminal, a table has the columns that
    fit, and lines of records are cut; --wide prints all.

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
      kafka-index dump /dump/orders-0
      kafka-index dump --records --offset 1234 /dump/orders-0/00000000000000000000.log
      kafka-index dump --json /dump/orders-0/*.timeindex | head
      kafka-index dump 's3://backup/broker-1/orders-0/*.index'
    """

_Dump = Callable[[DumpedFile, DumpOutput], KafkaIndexError | None]
_KINDS: dict[str, _Dump] = {
    OFFSET_INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
    **dict.fromkeys(OFFSET_CHECKPOINTS, dump_offset_checkpoint),
    **dict.fromkeys(PROPERTY_FILES, dump_properties),
}
# What --offset, and what times choose rows of.
_WITH_OFFSETS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_WITH_TIMES = (LOG_SUFFIX, TIME_INDEX_SUFFIX)


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``dump`` command, which does not run as a job."""
    refuse_job("dump", as_job=as_job)

    def dump(
        files: tuple[str, ...],
        offset: int | None,
        from_ms: int | None,
        to_ms: int | None,
        time_ms: int | None,
        limit: int | None,
        wide: bool,  # noqa: FBT001, because click passes options by name
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
        selection = _selection(offset, *time_range(from_ms, to_ms), time_ms, limit)
        directories = [file for file in files if not is_remote(file) and os.path.isdir(file)]
        known = dumped_files([file for file in files if file not in directories], kinds)
        _refuse_without_rows(known, directories, selection, records=records)
        output = DumpOutput(sys.stdout, as_json=as_json, is_wide=wide, selection=selection)
        damage: list[KafkaIndexError] = []
        for path in directories:
            for fault in dump_directory(path, output, verify_crc=not no_verify_crc):
                damage.append(fault)
                print_error(str(fault))
        damage += _dump_files(known, kinds, output)
        run_summary().add_count("files", len(known) + len(directories))
        run_summary().add_count("damaged", len(damage))
        return ExitCode.first(ExitCode.of_part(retriable=is_retriable(each)) for each in damage)

    return command(dump, _options(), help_text=_HELP, usage="[OPTIONS]")


def _options() -> list[Decorator]:
    return [
        click.argument("files", nargs=-1, required=True, metavar="FILE..."),
        click.option(
            "--offset",
            type=Whole(0, INT64_MAX),
            metavar="N",
            help="Only what holds offset N: the batch, the record, the transactions, or the index "
            "entry from which a search for it starts.",
        ),
        *time_options(),
        click.option(
            "--time",
            "time_ms",
            callback=moment,
            metavar="TIME",
            help="Only the first batch, record or entry that reaches TIME.",
        ),
        click.option(
            "--limit", type=Whole(min=1), metavar="N", help="At most N rows of each file."
        ),
        click.option(
            "--wide", is_flag=True, help="All columns and whole lines on a terminal, too."
        ),
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


def _selection(
    offset: int | None,
    from_ms: int | None,
    to_ms: int | None,
    time_ms: int | None,
    limit: int | None,
) -> Selection:
    """Return the rows that options choose; refuse those that exclude each other."""
    if time_ms is not None:
        if from_ms is not None or to_ms is not None or limit is not None:
            raise click.UsageError("--time excludes --from, --to and --limit")
        return Selection(offset, time_ms, None, 1)
    return Selection(offset, from_ms, to_ms, limit)


def _refuse_without_rows(
    files: Iterable[DumpedFile],
    directories: Sequence[str],
    selection: Selection,
    *,
    records: bool,
) -> None:
    """Refuse options that choose by what a file does not have."""
    if directories and (records or selection != Selection(limit=selection.limit)):
        raise click.UsageError(
            "--records, --offset, --from, --to and --time require files, not a directory"
        )
    for file in files:
        if records and file.kind != LOG_SUFFIX:
            raise InputError("--records requires a .log", path=file.path)
        if selection.offset is not None and file.kind not in _WITH_OFFSETS:
            raise InputError(f"--offset requires {', '.join(_WITH_OFFSETS)}", path=file.path)
        if selection.has_times and file.kind not in _WITH_TIMES:
            kinds = ", ".join(_WITH_TIMES)
            raise InputError(f"--from, --to and --time require {kinds}", path=file.path)


def _dump_files(
    files: Iterable[DumpedFile], kinds: Mapping[str, _Dump], output: DumpOutput
) -> Iterator[KafkaIndexError]:
    """Print files, and yield what is wrong with each."""
    for file in files:
        try:
            damage = kinds[file.kind](file, output)
            output.end()
        except KafkaIndexError as error:
            damage = error
        sys.stdout.flush()
        if damage is not None:
            print_error(str(damage))
            yield damage
