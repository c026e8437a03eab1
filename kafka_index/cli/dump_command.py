"""``dump``: the contents of a partition's files, as a table or as JSON lines."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable

import click

from kafka_index.cli.dump_index import dump_offset_index, dump_time_index
from kafka_index.cli.dump_log import dump_log
from kafka_index.cli.dump_metadata import decoder_of
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.dump_records import dump_records
from kafka_index.cli.dump_state import dump_leader_epochs, dump_snapshot, dump_transaction_index
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import max_decompressed_option, storage_option
from kafka_index.cli.record_text import FORMS, RecordText
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.records.decompression import shared_budget
from kafka_index.storage import local_path

_HELP = """Print the contents of each FILE: a row per record batch of a .log, or per record with
    --records; per entry of an .index, .timeindex or .txnindex; per producer of a .snapshot; per
    epoch of a leader-epoch-checkpoint. Offsets are absolute; the base offset is taken from the file
    name, which may also end in .swap, .cleaned or .deleted. Files are opened read-only.

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
    """

_KINDS: dict[str, Callable[[str, int, DumpOutput], KafkaIndexError | None]] = {
    OFFSET_INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
}


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``dump`` command, which does not run as a job.

    Parameters
    ----------
    as_job : bool
        Must be false.
    """
    if as_job:
        raise ValueError("dump does not run as a job")

    @click.command(
        name="dump",
        help=_HELP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.argument("files", nargs=-1, required=True, metavar="FILE...")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
    @click.option("--no-verify-crc", is_flag=True, help="Do not verify the checksums of a .log.")
    @click.option("--records", is_flag=True, help="Print a line per record of a .log.")
    @click.option(
        "--keys",
        type=click.Choice(FORMS),
        help="With --records.  [default: text]",
    )
    @click.option(
        "--values",
        type=click.Choice(FORMS),
        help="With --records; headers too.  [default: text]",
    )
    @max_decompressed_option()
    @storage_option()
    @click.option("--verbose", "-v", is_flag=True, help="Print tracebacks of errors.")
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

        def dump_one_log(path: str, base_offset: int, output: DumpOutput) -> KafkaIndexError | None:
            verify_crc = not no_verify_crc
            if not records:
                return dump_log(path, base_offset, output, verify_crc=verify_crc)
            text = RecordText(as_json=as_json, keys=keys, values=values, decode=decoder_of(path))
            return dump_records(
                path, base_offset, output, text, verify_crc=verify_crc, budget=budget
            )

        if isinstance(sys.stdout, io.TextIOWrapper):
            # Records and paths may contain characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        kinds = {LOG_SUFFIX: dump_one_log, **_KINDS}
        known = _known_files(files)
        if records:
            _refuse_others_than_logs(known)
        output = DumpOutput(sys.stdout, as_json=as_json)
        codes = []
        for path, base_offset, kind in known:
            try:
                if kind == LEADER_EPOCH_CHECKPOINT:
                    damage = dump_leader_epochs(path, output)
                else:
                    damage = kinds[kind](path, base_offset, output)
            except KafkaIndexError as error:
                damage = error
            sys.stdout.flush()
            if damage is not None:
                click.echo(f"kafka-index: error: {damage}", err=True)
                codes.append(ExitCode.of_part(retriable=is_retriable(damage)))
        return ExitCode.first(codes)

    return dump


def _refuse_others_than_logs(files: Iterable[tuple[str, int, str]]) -> None:
    for path, _, kind in files:
        if kind != LOG_SUFFIX:
            raise InputError("--records requires a .log", path=path)


def _known_files(files: Iterable[str]) -> list[tuple[str, int, str]]:
    """Return path, base offset and kind of each file; refuse unknown ones before any output."""
    known = []
    for file in files:
        path = local_path(file)
        name = os.path.basename(path)
        parsed = parse_segment_file(name)
        if not os.path.lexists(path):
            raise InputError("no such file", path=file)
        if parsed is None and name != LEADER_EPOCH_CHECKPOINT:
            kinds = ", ".join((LOG_SUFFIX, *_KINDS))
            raise InputError(
                "not a kind of file that can be dumped",
                path=file,
                expected=f"20 digits and one of {kinds}; or {LEADER_EPOCH_CHECKPOINT}",
                found=name or "a folder",
            )
        if not os.path.isfile(path):
            raise InputError("not a file", path=file)
        if parsed is None:
            known.append((path, 0, LEADER_EPOCH_CHECKPOINT))
        else:
            known.append((path, parsed.base_offset, parsed.kind))
    return known
