"""``lookup``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import gc
import re

import click

from kafka_index.cli.lookup_options import (
    BulkOptions,
    LogOptions,
    given_options,
    lookup_options,
    refuse_given,
)
from kafka_index.cli.lookup_questions import TopicQuestion, make_question
from kafka_index.cli.options import SUBMITTED, Detail, command, kept
from kafka_index.config import LogConfig
from kafka_index.execution import Engine
from kafka_index.tiered.options import TieredOptions

_HELP = """Find offsets and times in the logs below PATH, as a broker would.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either;
    or several, as `--logs A --logs B`, `--logs A B` or `--logs dump/*`. With `--tiered URI`, or
    with that alone, remote segments are read too. The queries are rows of Parquet, CSV or JSON
    lines with the columns topic, partition, and offset or timestamp; the answers are the same rows,
    in their order, with more columns. Logs and indexes are only read.

    Exit code 0: every query has its answer. 1: damage makes some unreadable, the summary and the
    report say where. 2: wrong usage, or nothing was found. 3: permission, disk, memory, network or
    cluster, worth a retry.

    \b
    Examples:
    """

_CONSOLE_EXAMPLES = """\
  kafka-index lookup --logs /dump/broker-1 --topic orders
      kafka-index lookup --logs /dump/broker-1 --topic orders --timestamp 2024-05-01T00:00:00Z
      kafka-index lookup --logs /dump/broker-1 --topic orders --partition 0 \\
          --timestamp 2024-05-01T00:00:00Z --show-record
      kafka-index lookup --logs /dump/broker-1 --topic orders --partition 0 --offset 1234 --json
      kafka-index lookup --logs /dump/broker-1 --queries queries.parquet --by timestamp \\
          --output answers.parquet
      kafka-index lookup --logs /dump/* --indexes /tmp/indexes --queries 'queries/*.csv' \\
          --by offset --resolve record --output answers --report report.csv
      kafka-index lookup --logs /dump/broker-1 --queries q.csv --by timestamp \\
          --output answers.csv --starting-offsets starting-offsets.json
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/lookup.py --logs /dump/broker-1 --queries /queries \\
          --by offset --output /answers
      spark-submit --master spark://host:7077 jobs/lookup.py --logs /mnt/dump/* \\
          --indexes /mnt/indexes --queries /mnt/queries --by timestamp --output /mnt/answers
"""
_IN_BULK = "--queries PATH --output PATH --by offset|timestamp"
_SINGLE = "--topic NAME [--partition N]... [--offset N | --timestamp TIME]"
# The default of --show-record is this level, too.
_RECORD = (None, "record")


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``lookup`` command, or as a job for ``spark-submit``: on Spark, files only."""

    def lookup(
        logs: tuple[str, ...],
        tiered: TieredOptions | None,
        indexes: str | None,
        queries: str | None,
        output: str | None,
        by: str | None,
        resolve: str | None,
        upper_bound: str,
        config_path: str | None,
        index_interval_bytes: int | None,
        max_decompressed_bytes: int | None,
        topics: re.Pattern[str] | None,
        report: str | None,
        starting_offsets: str | None,
        reset_offsets: str | None,
        fail_on: frozenset[str],
        overwrite: bool,  # noqa: FBT001, because click passes options by name
        detail: Detail,
        topic: str | None = None,
        partitions: tuple[int, ...] = (),
        offset: int | None = None,
        timestamp: str | None = None,
        show_record: bool = False,  # noqa: FBT001, FBT002, because click passes options by name
        as_offsets: bool = False,  # noqa: FBT001, FBT002, because click passes options by name
        as_json: bool = False,  # noqa: FBT001, FBT002, because click passes options by name
        engine: Engine = SUBMITTED,
    ) -> int:
        if not (logs or tiered):
            raise click.UsageError("no logs: give --logs PATH or --tiered URI")
        config = LogConfig.load(
            config_path,
            index_interval_bytes=index_interval_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        where = LogOptions(logs, tiered, indexes, upper_bound, resolve, config)
        of_question = {
            "--topic": topic,
            "--partition": partitions or None,
            "--offset": offset,
            "--timestamp": timestamp,
            "--show-record": show_record,
            "--get-offsets": as_offsets,
            "--json": as_json,
        }
        if queries is None and given_options(of_question):
            of_queries = {
                "--output": output,
                "--by": by,
                "--topics": topics,
                "--report": report,
                "--starting-offsets": starting_offsets,
                "--reset-offsets": reset_offsets,
                "--fail-on": fail_on or None,
                "--overwrite": overwrite,
                "--engine spark": engine.on_spark,
                "--master": kept(click.get_current_context(), "master"),
                "--threads": kept(click.get_current_context(), "threads"),
            }
            refuse_given(of_queries, "--queries, not with a single question")
            question = make_question(
                topic, partitions, offset, timestamp, as_json=as_json, as_offsets=as_offsets
            )
            if isinstance(question, TopicQuestion) and resolve not in _RECORD:
                raise click.UsageError(
                    f"--resolve {resolve} needs one --partition, --offset or --timestamp: tables "
                    "and --get-offsets have the level of records"
                )
            if show_record and (isinstance(question, TopicQuestion) or resolve not in _RECORD):
                raise click.UsageError(
                    "--show-record needs one --partition, --offset or --timestamp, and the level "
                    "of records"
                )
            # Imports take nearly all of the time: import only what a question needs, and collect
            # no garbage meanwhile, nor when the process ends.
            gc.disable()
            try:
                if isinstance(question, TopicQuestion):
                    from kafka_index.cli.lookup_topic import answer_topic  # noqa: PLC0415

                    return answer_topic(question, where, detail)
                from kafka_index.cli.lookup_question import answer_question  # noqa: PLC0415

                return answer_question(
                    question, where, detail, as_json=as_json, show_record=show_record
                )
            finally:
                gc.freeze()
                gc.enable()
        refuse_given(of_question, "a single question, without --queries")
        if queries is None:
            instead = "" if as_job else ", or --topic"
            raise click.UsageError(f"no queries: give --queries PATH{instead}")
        if output is None:
            raise click.UsageError("no output: give --output PATH")
        if by is None:
            raise click.UsageError("no key: give --by offset or timestamp")
        from kafka_index.cli.lookup import run_lookup  # noqa: PLC0415

        return run_lookup(
            BulkOptions(
                queries=queries,
                output=output,
                by=by,
                topics=topics,
                report=report,
                starting_offsets=starting_offsets,
                reset_offsets=reset_offsets,
                overwrite=overwrite,
                fail_on=fail_on,
                engine=engine,
                detail=detail,
            ),
            where,
        )

    return command(
        lookup,
        lookup_options(as_job=as_job),
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage=f"--logs PATH... {_IN_BULK if as_job else f'({_IN_BULK} | {_SINGLE})'} [OPTIONS]",
    )
