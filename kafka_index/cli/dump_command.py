"""``dump``: what is in a ``.log``, ``.index`` or ``.timeindex``, readable or as JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

import click

from kafka_index.cli.dump_index import dump_offset_index, dump_time_index
from kafka_index.cli.dump_log import dump_log
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.exit_code import ExitCode
from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.layout.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.storage import local_path

_HELP = """Print what is in each FILE: a row per record batch of a .log, per entry of an .index or
    .timeindex. Offsets are absolute; the base offset comes from the file's name, which may end in
    .swap, .cleaned or .deleted too. Files are only read.

    A log is read as far as a broker's recovery would go, and the last line says why it ends
    there. Zeros behind the entries of an index that was preallocated are counted, not printed.

    Exit code 0: the files are whole. 1: one is damaged; what is there is printed, and a line on
    stderr says where and how. 2: wrong usage, or a kind of file this does not know.

    \b
    Examples:
      kafka-index dump /dump/orders-0/00000000000000000000.log
      kafka-index dump --json /dump/orders-0/*.timeindex | head
    """

_KINDS: dict[str, Callable[[str, int, DumpOutput], KafkaIndexError | None]] = {
    OFFSET_INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
}


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``dump`` command, which is no job.

    Parameters
    ----------
    as_job : bool
        Must be false.
    """
    if as_job:
        raise ValueError("dump is no job")

    @click.command(
        name="dump",
        help=_HELP,
        short_help="Print what is in a file.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.argument("files", nargs=-1, required=True, metavar="FILE...")
    @click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
    @click.option(
        "--no-verify-crc", is_flag=True, help="Read the batch headers of a .log, not its records."
    )
    @click.option("--verbose", "-v", is_flag=True, help="Say more about errors.")
    def dump(
        files: tuple[str, ...],
        as_json: bool,  # noqa: FBT001, because click passes options by name
        no_verify_crc: bool,  # noqa: FBT001, because click passes options by name
        verbose: bool,  # noqa: ARG001, FBT001, because the entry point acts on it
    ) -> int:
        output = DumpOutput(sys.stdout, as_json=as_json)
        code = ExitCode.DONE
        for path, base_offset, kind in _known_files(files):
            try:
                if kind == LOG_SUFFIX:
                    damage = dump_log(path, base_offset, output, verify_crc=not no_verify_crc)
                else:
                    damage = _KINDS[kind](path, base_offset, output)
            except KafkaIndexError as error:
                damage = error
            sys.stdout.flush()
            if damage is not None:
                click.echo(f"kafka-index: error: {damage}", err=True)
                code = ExitCode.DAMAGED
        return code

    return dump


def _known_files(files: Iterable[str]) -> list[tuple[str, int, str]]:
    """Refuse what cannot be dumped before anything is printed."""
    known = []
    for file in files:
        path = local_path(file)
        parsed = parse_segment_file(os.path.basename(path))
        if parsed is None or (parsed.kind != LOG_SUFFIX and parsed.kind not in _KINDS):
            raise InputError(
                "not a kind of file that can be dumped",
                path=file,
                expected=f"20 digits and one of {LOG_SUFFIX}, {', '.join(_KINDS)}",
                found=os.path.basename(path) or "a folder",
            )
        if not os.path.isfile(path):
            found = "a folder" if os.path.isdir(path) else "nothing"
            raise InputError("no such file", path=file, expected="a file", found=found)
        known.append((path, parsed.base_offset, parsed.kind))
    return known
