"""``rewrite``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.cli.options import (
    SUBMITTED,
    Decorator,
    Detail,
    command,
    max_decompressed_option,
    paths_options,
    report_option,
    run_options,
    settings_options,
    topics_option,
)
from kafka_index.cli.rewrite import RewriteOptions, run_rewrite
from kafka_index.cli.tiered_options import tiered_options
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.errors import InputError
from kafka_index.execution import Engine
from kafka_index.stores import is_remote
from kafka_index.tiered.options import TieredOptions
from kafka_index.writing.condition import Condition, Selection, parse_keys
from kafka_index.writing.rewriting import RewriteSettings

_HELP = """Copy a dump without some of its records; all others keep their offsets.

    Records are dropped by their keys, or by a condition over topic, partition, offset, timestamp,
    key and header('NAME'). Batches that lose none are copied byte for byte; the others are encoded
    again as the log cleaner does it. Control records, transactions and producers stay. All index
    files, snapshots and epochs are rebuilt. Internal topics are copied as they are.

    The input is never changed. A damaged partition is left out. --dry-run prints what would be
    dropped.

    Exit codes: 0, all partitions are rewritten; 1, a partition is damaged and left out; 2, wrong
    usage, or refused: nothing matches, everything matches, or an older record would be revived; 3,
    a failure of permission, disk, memory or cluster, worth a retry; 70, an internal error.

    \b
    Examples:
      kafka-index rewrite --input /dump/broker-1 --output /clean --drop-keys keys.txt
      kafka-index rewrite --input /dump/broker-1 --dry-run \\
          --drop-where "topic = 'orders' AND header('tenant') = 'acme'"
    """


def _options() -> list[Decorator]:
    return [
        *paths_options("--input", "inputs", "Directories to read; may be repeated."),
        click.option(
            "--output", metavar="DIR", help="An empty folder, or one of an unfinished rewrite."
        ),
        click.option(
            "--drop-keys",
            metavar="FILE",
            help="Drop records with these keys, one per line: text, hex: or base64:.",
        ),
        click.option("--drop-where", metavar="EXPR", help="Drop records that satisfy a condition."),
        *tiered_options(),
        topics_option(),
        *settings_options(),
        click.option("--dry-run", is_flag=True, help="Print what is dropped, and write nothing."),
        click.option(
            "--force", is_flag=True, help="Go on even if no record matches, or every record."
        ),
        click.option(
            "--metadata",
            metavar="DIR",
            help="The metadata log directory, which says what topics are compacted.",
        ),
        click.option(
            "--allow-revive",
            is_flag=True,
            help="Drop the newest record of a key even if an older one stays.",
        ),
        max_decompressed_option(),
        report_option("a row per partition"),
    ]


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``rewrite`` command, or as a job for ``spark-submit`` that is always on Spark."""

    def rewrite(
        inputs: tuple[str, ...],
        output: str | None,
        drop_keys: str | None,
        drop_where: str | None,
        tiered: TieredOptions | None,
        topics: re.Pattern[str] | None,
        config_path: str | None,
        index_interval_bytes: int | None,
        dry_run: bool,  # noqa: FBT001, because click passes options by name
        force: bool,  # noqa: FBT001, because click passes options by name
        metadata: str | None,
        allow_revive: bool,  # noqa: FBT001, because click passes options by name
        max_decompressed_bytes: int | None,
        report: str | None,
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        if not (inputs or tiered):
            raise click.UsageError("no input: give --input PATH or --tiered URI")
        if (drop_keys is None) == (drop_where is None):
            raise click.UsageError("give one of --drop-keys and --drop-where")
        if (output is None) != dry_run:
            raise click.UsageError("give --output DIR, or --dry-run without it")
        if output is not None and is_remote(output):
            raise click.UsageError(
                f"logs are written to a file system, and {output} is in a store: write to a "
                "folder, and copy it"
            )
        return run_rewrite(
            RewriteOptions(
                inputs=inputs,
                output=output,
                tiered=tiered,
                topics=topics,
                metadata=metadata,
                settings=RewriteSettings(
                    _selection(drop_keys, drop_where),
                    LogConfig.load(config_path, index_interval_bytes=index_interval_bytes),
                    max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES,
                    allow_revive,
                ),
                force=force,
                report=report,
                engine=engine,
                detail=detail,
            )
        )

    return command(
        rewrite,
        [*_options(), *run_options(as_job=as_job)],
        help_text=_HELP,
        usage="(--input PATH... | --tiered URI) (--output DIR | --dry-run) "
        "(--drop-keys FILE | --drop-where EXPR)",
    )


def _selection(drop_keys: str | None, drop_where: str | None) -> Selection:
    if drop_where is not None:
        return Selection(condition=Condition.parse(drop_where))
    path = drop_keys or ""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return Selection(parse_keys(file, path=path))
    except OSError as error:
        raise InputError(f"cannot read the keys: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError(
            "the file of keys is not UTF-8", path=path, hint="write other bytes as hex:"
        ) from error
