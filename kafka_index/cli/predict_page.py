"""The page of ``predict --report FILE.html``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from kafka_index.cli.predict_text import losses_text, verdict_line
from kafka_index.cli.report_page import BAD, GOOD, NOTABLE, page_maker
from kafka_index.errors import KafkaIndexError
from kafka_index.pages.page import Explained, Page, Verdict
from kafka_index.startup import Outcome, Prediction, SegmentAction
from kafka_index.startup import Verdict as StartVerdict
from kafka_index.storage import list_dump
from kafka_index.storage.report_file import PageMaker
from kafka_index.storage.segment_table import SegmentTable


def predict_page(predicted: Callable[[], Prediction | None], directories: list[str]) -> PageMaker:
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


def _verdict(prediction: Prediction | None) -> Verdict:
    if prediction is None:
        return Verdict(BAD, "no prediction: the run ended before")
    if prediction.verdict is StartVerdict.SAFE:
        return Verdict(GOOD, f"{verdict_line(prediction)}: a broker starts, and loses nothing")
    if prediction.verdict is StartVerdict.LOSES:
        return Verdict(BAD, f"loses: a broker starts, {losses_text(prediction)}")
    if prediction.verdict is not StartVerdict.DOES_NOT_START:
        return Verdict(BAD, verdict_line(prediction))
    refused = "; ".join(f"{each.file}: {each.reason}" for each in prediction.refused)
    return Verdict(BAD, f"does_not_start: {refused}")
