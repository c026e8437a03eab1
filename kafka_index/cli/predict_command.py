"""``predict``: what a broker does to its log directories when it starts."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import click

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import (
    command,
    max_decompressed_option,
    paths_options,
    refuse_job,
    report_option,
    warn_of_unknown_settings,
)
from kafka_index.cli.predict_page import predict_page
from kafka_index.cli.predict_text import (
    SEGMENT_ROWS,
    Shown,
    count_prediction,
    print_prediction,
    segment_rows,
)
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig, read_properties
from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.names import METADATA_LOG
from kafka_index.metadata import ClusterImage, read_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.startup import (
    Prediction,
    StartConditions,
    Verdict,
    metadata_directory_of,
    predict_directories,
    suggest,
)
from kafka_index.storage import local_path
from kafka_index.storage.report_file import ReportFile

_HELP = """Predict what a broker of 4.3.1 does to these log directories when it starts, before
    anyone starts it. Nothing is written; a directory that a running broker holds is refused.

    Give all data directories of the broker. Each partition is loaded as the broker loads it: which
    segments are kept, rebuilt, cut, deleted or replaced; log start and log end before and after;
    records that are lost or hidden, with their offsets and times. With --metadata, a metadata log
    directory, partitions that are stray or missing are found, the settings of topics count, and
    what retention deletes 30 seconds after the start is listed; it is not part of the verdict.

    The verdict comes first: safe, loses, does_not_serve (it starts, and a partition is stray, or
    cannot be read to its end), does_not_start, or unknown. What was not judged is named in its
    line. Without --metadata, the metadata log is that of metadata.log.dir in --config, or the one
    in the directories, if there is one. Whether a node starts on it is judged first.

    Exit codes: 0, safe; 1, any other verdict; 2, wrong usage, or a
    running broker; 3, a file cannot be read because of permission, disk or memory; 70, an internal
    error.
    """
_EXAMPLES = """
    \b
    Examples:
      kafka-index predict --input /var/kafka/data-1 /var/kafka/data-2 --metadata /var/kafka/metadata
      kafka-index predict --input /restored/data --config server.properties --json
    """


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``predict`` command, which does not run as a job."""
    refuse_job("predict", as_job=as_job)

    def predict(
        inputs: tuple[str, ...],
        metadata: str | None,
        config_path: str | None,
        as_json: bool,  # noqa: FBT001, because click passes options by name
        report: str | None,
        max_decompressed_bytes: int | None,
        wide: bool,  # noqa: FBT001, because click passes options by name
        quiet: bool,  # noqa: FBT001, because click passes options by name
        verbose: bool,  # noqa: FBT001, because click passes options by name
    ) -> int:
        paths = [local_path(path) for path in inputs]
        if not paths:
            raise click.UsageError("no input: give --input DIR")
        properties = None if config_path is None else read_properties(config_path)
        directory = metadata_directory_of(paths, properties, metadata)
        damaged = None
        try:
            cluster = _cluster(metadata, directory, max_decompressed_bytes)
        except InputError as error:
            if is_retriable(error):
                raise
            cluster, damaged = None, error
        conditions = StartConditions(
            LogConfig.load(config_path),
            cluster,
            properties=properties,
            metadata_directory=directory,
        )
        shown = next(
            (
                one
                for one, is_asked in (
                    (Shown.JSON, as_json),
                    (Shown.QUIET, quiet),
                    (Shown.VERBOSE, verbose),
                    (Shown.WIDE, wide),
                )
                if is_asked
            ),
            Shown.BRIEF,
        )
        prediction: Prediction | None = None
        with ExitStack() as reports:
            # Begun first: where it cannot be written, that is known before the logs are read.
            file = None
            if report is not None:
                page = predict_page(lambda: prediction, paths)
                file = reports.enter_context(ReportFile(report, SEGMENT_ROWS, page))
            prediction = predict_directories(paths, conditions)
            # A node exits over some of what the metadata cannot be read for.
            if damaged is not None and prediction.verdict is not Verdict.DOES_NOT_START:
                raise damaged
            hint = suggest(paths, conditions, prediction)
            count_prediction(prediction)
            # Printed first: where the report cannot be finished, the answer is not lost.
            print_prediction(prediction, hint, sys.stdout, shown=shown)
            sys.stdout.flush()
            if file is not None:
                file.write_table(segment_rows(prediction))
        return ExitCode.DONE if prediction.verdict is Verdict.SAFE else ExitCode.DAMAGE

    return command(
        predict,
        [
            *paths_options("--input", "inputs", "Data directories of one broker."),
            click.option("--metadata", metavar="DIR", help="The metadata log directory."),
            click.option(
                "--config",
                "config_path",
                metavar="FILE",
                callback=warn_of_unknown_settings,
                help="Kafka settings, such as the broker's server.properties.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
            report_option("a row per segment", has_page=True),
            max_decompressed_option(),
            click.option("--wide", is_flag=True, help="Print each segment that is rebuilt."),
            click.option("--quiet", "-q", is_flag=True, help="Print the verdict's line alone."),
            click.option("--verbose", "-v", is_flag=True, help="Print every segment; tracebacks."),
        ],
        help_text=_HELP + _EXAMPLES,
        usage="--input DIR... [OPTIONS]",
        has_links=False,
    )


def _cluster(
    given: str | None, directory: str | None, max_decompressed_bytes: int | None
) -> ClusterImage | None:
    """Return the metadata that was given, or that lies in the broker's directories."""
    budget = shared_budget(max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES)
    if given is not None:
        return read_cluster([given], budget=budget)
    if directory is None or not os.path.isdir(os.path.join(directory, METADATA_LOG)):
        return None
    return read_cluster([directory], budget=budget)
