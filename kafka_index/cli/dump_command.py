"""``dump``: the contents of a partition's files, as a table or as JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.dump_indexes import (
    PROPERTY_FILES,
    dump_leader_epochs,
    dump_offset_checkpoint,
    dump_properties,
    dump_snapshot,
    dump_sparse_index,
    dump_transaction_index,
)
from kafka_index.cli.dump_logs import dump_directory, dump_log, dump_records
from kafka_index.cli.dump_output import DumpedFile, DumpOutput, Selection
from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import Whole, argument, command, flag, moment, option
from kafka_index.cli.record_text import RecordText
from kafka_index.cli.shared_options import (
    Detail,
    Times,
    detail_options,
    max_decompressed_option,
    times_options,
)
from kafka_index.cli.terminal import escape_on_stdout, print_error
from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_CHECKPOINTS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.core.fs.paths import expand_stored
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.request import Group
from kafka_index.core.query.choices import BytesForm
from kafka_index.core.query.printed_records import decoder_of
from kafka_index.core.records.decompression import shared_budget

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
    """
_EXAMPLES = """\
kafka-index dump /dump/orders-0/00000000000000000000.log
kafka-index dump --records --values none /dump/orders-0/00000000000000000000.log
kafka-index dump /dump/orders-0
kafka-index dump --records --offset 1234 /dump/orders-0/00000000000000000000.log
kafka-index dump --json /dump/orders-0/*.timeindex | head
kafka-index dump 's3://backup/broker-1/orders-0/*.index'
"""
_KINDS: dict[str, _Dump] = {
    OFFSET_INDEX_SUFFIX: dump_sparse_index,
    TIME_INDEX_SUFFIX: dump_sparse_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
    **dict.fromkeys(OFFSET_CHECKPOINTS, dump_offset_checkpoint),
    **dict.fromkeys(PROPERTY_FILES, dump_properties),
}
# What --offset, and what times choose rows of.
_WITH_OFFSETS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_WITH_TIMES = (LOG_SUFFIX, TIME_INDEX_SUFFIX)


def dumped_files(given: Iterable[str], kinds: Collection[str]) -> list[DumpedFile]:
    """Return the files to dump; refuse unknown ones before any output.

    A glob of a URI is expanded, as the shell does for paths, to files that can be dumped. The kinds
    are their suffixes and names. Raises `InputError` if a file does not exist, is not a file, or is
    of another kind.
    """
    files: list[DumpedFile] = []
    for path in given:
        matches = expand_stored(path)
        known = [file for match in matches if (file := _known(match, kinds)) is not None]
        if not store_of(matches[0]).needs_requests and not os.path.lexists(matches[0]):
            raise InputError("no such file", path=path)
        if not known:
            raise _unknown_kind(matches[0], kinds)
        if len(matches) == 1 and not known[0].is_there:
            raise InputError("not a file", path=path)
        files += known
    return files


def _known(path: str, kinds: Collection[str]) -> DumpedFile | None:
    name = os.path.basename(path)
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind in kinds:
        return DumpedFile(path, parsed.base_offset, parsed.kind)
    if name in kinds:
        return DumpedFile(path, 0, name)
    return None


def _unknown_kind(path: str, kinds: Collection[str]) -> InputError:
    return InputError(
        "not a kind of file that can be dumped",
        path=path,
        expected="20 digits and one of "
        f"{', '.join(kind for kind in kinds if kind.startswith('.'))}; or "
        f"{', '.join(kind for kind in kinds if not kind.startswith('.'))}",
        found=os.path.basename(path) or "a folder",
    )


_Dump = Callable[[DumpedFile, DumpOutput], KafkaIndexError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of ``dump``."""

    files: tuple[str, ...] = argument("FILE...")
    offset: int | None = option(
        "--offset",
        group=Group.SELECTION,
        type=Whole(0, INT64_MAX),
        metavar="N",
        help="Only what holds offset N: the batch, the record, the transactions, or the index "
        "entry from which a search for it starts.",
    )
    times: Times = times_options()
    at_ms: int | None = option(
        "--at",
        "--time",
        group=Group.SELECTION,
        callback=moment,
        metavar="TIME",
        help="Only the first batch, record or entry that reaches TIME.",
    )
    limit: int | None = option(
        "--limit",
        group=Group.SELECTION,
        type=Whole(min=1),
        metavar="N",
        help="At most N rows of each file.",
    )
    wide: bool = flag(
        "--wide", group=Group.OUTPUT, help="All columns and whole lines on a terminal, too."
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print JSON lines.")
    no_verify_crc: bool = flag(
        "--no-verify-crc", group=Group.BEHAVIOUR, help="Do not verify the checksums of a .log."
    )
    records: bool = flag("--records", group=Group.OUTPUT, help="Print a line per record of a .log.")
    keys: str | None = option(
        "--keys",
        group=Group.OUTPUT,
        type=click.Choice(tuple(BytesForm)),
        help="With --records.  [default: text]",
    )
    values: str | None = option(
        "--values",
        group=Group.OUTPUT,
        type=click.Choice(tuple(BytesForm)),
        help="With --records; headers too.  [default: text]",
    )
    max_decompressed_bytes: int = max_decompressed_option()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        if not self.records and (self.keys or self.values):
            raise click.UsageError("--keys and --values require --records")
        if self.at_ms is not None and (self.times != (None, None) or self.limit is not None):
            raise click.UsageError("--at excludes --from, --to and --limit")

    @property
    def selection(self) -> Selection:
        """The rows that are printed."""
        if self.at_ms is not None:
            return Selection(self.offset, self.at_ms, None, 1)
        return Selection(self.offset, *self.times, self.limit)


def _run(options: DumpOptions) -> ExitCode:
    verify_crc = not options.no_verify_crc
    budget = shared_budget(options.max_decompressed_bytes)

    def dump_one_log(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
        if not options.records:
            return dump_log(file, output, verify_crc=verify_crc)
        text = RecordText(
            as_json=options.as_json,
            keys=options.keys,
            values=options.values,
            decode=decoder_of(file.path),
        )
        return dump_records(file, output, text, verify_crc=verify_crc, budget=budget)

    escape_on_stdout()
    kinds = {LOG_SUFFIX: dump_one_log, **_KINDS}
    directories = [path for path in options.files if os.path.isdir(path)]
    known = dumped_files([path for path in options.files if path not in directories], kinds)
    selection = options.selection
    if directories and (options.records or selection != Selection(limit=selection.limit)):
        raise click.UsageError(
            "--records, --offset, --from, --to and --at require files, not a directory"
        )
    for file in known:
        _refuse_without_rows(file, options)
    output = DumpOutput(
        options.detail.stdout, as_json=options.as_json, is_wide=options.wide, selection=selection
    )
    damage: list[KafkaIndexError] = []
    for path in directories:
        for fault in dump_directory(path, output, verify_crc=verify_crc):
            damage.append(fault)
            print_error(str(fault))
    damage += _dump_files(known, kinds, output)
    run_summary().add_count("files", len(known) + len(directories))
    run_summary().add_count("damaged", len(damage))
    return ExitCode.of_faults(damage)


def _refuse_without_rows(file: DumpedFile, options: DumpOptions) -> None:
    """Refuse options that choose by what a file does not have."""
    if options.records and file.kind != LOG_SUFFIX:
        raise InputError("--records requires a .log", path=file.path)
    if options.offset is not None and file.kind not in _WITH_OFFSETS:
        raise InputError(f"--offset requires {', '.join(_WITH_OFFSETS)}", path=file.path)
    if options.selection.has_times and file.kind not in _WITH_TIMES:
        raise InputError(f"--from, --to and --at require {', '.join(_WITH_TIMES)}", path=file.path)


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


make_command = partial(
    command,
    "dump",
    DumpOptions,
    _run,
    help_text=_HELP,
    usage="[OPTIONS]",
    examples=_EXAMPLES,
)
