"""``predict``: what a broker does to its log directories when it starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import click
import pyarrow as pa

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import command, option
from kafka_index.cli.predict_text import Shown, losses_text, print_prediction, verdict_line
from kafka_index.cli.report_page import BAD, GOOD, NOTABLE, page_maker
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import (
    config_option,
    input_option,
    max_decompressed_option,
    report_option,
)
from kafka_index.config import LogConfig, read_properties
from kafka_index.errors import KafkaIndexError
from kafka_index.pages.page import Explained, Page
from kafka_index.pages.page import Verdict as PageVerdict
from kafka_index.startup import Outcome, Prediction, SegmentAction, Verdict
from kafka_index.startup.predicting import predict_start, start_conditions
from kafka_index.startup.prediction import SEGMENT_ROWS
from kafka_index.storage import list_dump, local_path
from kafka_index.storage.report_file import PageMaker, ReportFile
from kafka_index.storage.segment_table import SegmentTable

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
_EXAMPLES = """\
kafka-index predict --input /var/kafka/data-1 /var/kafka/data-2 --metadata /var/kafka/metadata
kafka-index predict --input /restored/data --config server.properties --json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """The options of ``predict``."""

    inputs: tuple[str, ...] = input_option("Data directories of one broker.")
    metadata: str | None = option("--metadata", metavar="DIR", help="The metadata log directory.")
    config_path: str | None = config_option(
        "Kafka settings, such as the broker's server.properties."
    )
    as_json: bool = option("--json", is_flag=True, help="Print one JSON object.")
    report: str | None = report_option("a row per segment", has_page=True)
    max_decompressed_bytes: int = max_decompressed_option()
    wide: bool = option("--wide", is_flag=True, help="Print each segment that is rebuilt.")
    quiet: bool = option("--quiet", "-q", is_flag=True, help="Print the verdict's line alone.")
    verbose: bool = option("--verbose", "-v", is_flag=True, help="Print every segment; tracebacks.")

    def __post_init__(self) -> None:
        if not self.inputs:
            raise click.UsageError("no input: give --input DIR")

    @property
    def shown(self) -> Shown:
        """The part of the prediction that is printed."""
        asked = {
            Shown.JSON: self.as_json,
            Shown.QUIET: self.quiet,
            Shown.VERBOSE: self.verbose,
            Shown.WIDE: self.wide,
        }
        return next((each for each, is_asked in asked.items() if is_asked), Shown.BRIEF)


def _run(options: PredictOptions) -> ExitCode:
    paths = [local_path(path) for path in options.inputs]
    properties = None if options.config_path is None else read_properties(options.config_path)
    conditions = start_conditions(
        paths,
        options.metadata,
        properties,
        LogConfig.load(options.config_path),
        options.max_decompressed_bytes,
    )
    prediction: Prediction | None = None
    with ExitStack() as reports:
        # Begun first: where it cannot be written, that is known before the logs are read.
        file = None
        if options.report is not None:
            page = _page(lambda: prediction, paths)
            file = reports.enter_context(ReportFile(options.report, SEGMENT_ROWS, page))
        prediction = predict_start(paths, conditions)
        run_summary().add_result(prediction)
        # Printed first: where the report cannot be finished, the answer is not lost.
        print_prediction(prediction, sys.stdout, shown=options.shown)
        sys.stdout.flush()
        if file is not None:
            file.write_table(prediction.to_arrow())
    return ExitCode(prediction.outcome.exit_code)


def _page(predicted: Callable[[], Prediction | None], directories: list[str]) -> PageMaker:
    """Return the maker of the page of ``predict`` for a broker's data directories.

    The prediction is None before it is known.
    """
    command = "kafka-index predict --verbose --input {directory}"
    explained = {
        SegmentAction.KEEP.value: Explained(GOOD, "kept as it is", command),
        Outcome.LOADED.value: Explained(GOOD, "loaded; it has no segments", command),
        SegmentAction.REBUILD.value: Explained(NOTABLE, "kept, its indexes rebuilt", command),
        SegmentAction.REPLACE.value: Explained(NOTABLE, "replaced by a swap file", command),
        Outcome.EMPTIED.value: Explained(BAD, "the partition begins anew, empty", command),
        SegmentAction.CUT.value: Explained(BAD, "cut: what lies after is not kept", command),
        SegmentAction.DELETE.value: Explained(BAD, "deleted", command),
        Outcome.STRAY.value: Explained(BAD, "not of this broker any more: set aside", command),
        Outcome.REFUSED.value: Explained(BAD, "the broker does not start with it", command),
    }

    def segments() -> Iterator[pa.RecordBatch]:
        try:
            found = SegmentTable.of(list_dump(directories, topics=None).segments)
        except KafkaIndexError:
            # Directories without a log have a verdict, and no picture.
            return
        for each in found.partitions:
            yield each.rows()

    page = Page(
        "predict",
        "segments",
        ("action", "outcome"),
        explained,
        lambda _: _verdict(predicted()),
        segments=segments,
    )
    return page_maker(page)


def _verdict(prediction: Prediction | None) -> PageVerdict:
    if prediction is None:
        return PageVerdict(BAD, "no prediction: the run ended before")
    if prediction.verdict is Verdict.SAFE:
        return PageVerdict(GOOD, f"{verdict_line(prediction)}: a broker starts, and loses nothing")
    if prediction.verdict is Verdict.LOSES:
        return PageVerdict(BAD, f"loses: a broker starts, {losses_text(prediction)}")
    if prediction.verdict is not Verdict.DOES_NOT_START:
        return PageVerdict(BAD, verdict_line(prediction))
    refused = "; ".join(f"{each.file}: {each.reason}" for each in prediction.refused)
    return PageVerdict(BAD, f"does_not_start: {refused}")


make_command = partial(
    command,
    "predict",
    PredictOptions,
    _run,
    help_text=_HELP,
    usage="--input DIR... [OPTIONS]",
    examples=_EXAMPLES,
    has_links=False,
)
