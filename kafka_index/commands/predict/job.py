"""A prediction: its conditions, its computation, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import pyarrow as pa

from kafka_index.commands.predict.request import PredictRequest
from kafka_index.commands.predict.result import Prediction
from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.startup.conditions import start_conditions
from kafka_index.core.startup.directories import predict_start
from kafka_index.core.startup.identity import input_directories
from kafka_index.core.startup.prediction import StartPrediction


def predict(
    request: PredictRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    report: ReportSink | None = None,
) -> Prediction:
    """Predict the startup of a broker.

    Raises `InputError` if a directory cannot be read, or is locked by a running broker.
    """
    directories = input_directories(request.inputs)
    conditions = start_conditions(
        directories,
        request.metadata,
        request.config.properties,
        request.config.config,
        request.max_decompressed_bytes,
        request.known_losses,
    )
    found = predict_start(directories, conditions)
    if report is not None:
        report.add_segments(_segments(directories))
    return Prediction(
        **{field.name: getattr(found, field.name) for field in fields(StartPrediction)},
        directories=tuple(directories),
    )


def _segments(directories: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of directories; none if there is no log."""
    try:
        listed = list_dump(directories, topics=None)
    except KafkaIndexError:
        return
    for partition in SegmentTable.of(listed.segments).partitions:
        yield partition.rows()
