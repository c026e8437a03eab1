"""A prediction, from what is known of a broker to its verdict, and a start that loses less."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafka_index.config import LogConfig
from kafka_index.layout.names import CLEAN_SHUTDOWN, METADATA_LOG
from kafka_index.records.decompression import shared_budget
from kafka_index.startup.directories import StartConditions, predict_directories
from kafka_index.startup.identity import metadata_directory_of
from kafka_index.startup.metadata_log import read_started_cluster
from kafka_index.startup.prediction import Outcome, Prediction, Verdict


def start_conditions(
    directories: Sequence[str],
    metadata: str | None,
    properties: Mapping[str, str] | None,
    config: LogConfig,
    max_decompressed_bytes: int,
) -> StartConditions:
    """Return the conditions of a start, with the metadata that is given or lies in the directories.

    `properties` are all settings of the broker, None where they are not known.
    """
    directory = metadata_directory_of(directories, properties, metadata)
    path = directory if metadata is None else metadata
    cluster, fault = None, None
    is_there = metadata is not None or os.path.isdir(os.path.join(path or "", METADATA_LOG))
    if path is not None and is_there:
        budget = shared_budget(max_decompressed_bytes)
        cluster, fault = read_started_cluster(path, properties, budget)
    return StartConditions(
        config,
        cluster,
        properties=properties,
        metadata_directory=directory,
        metadata_fault=fault,
    )


def predict_start(directories: Sequence[str], conditions: StartConditions) -> Prediction:
    """Predict a start, and suggest another one where that loses less.

    Raises `InputError` if a directory cannot be read, or a running broker holds it.
    """
    prediction = predict_directories(directories, conditions)
    return replace(prediction, suggestion=suggest(directories, conditions, prediction))


def suggest(
    paths: Sequence[str], conditions: StartConditions, prediction: Prediction
) -> str | None:
    """Return what the same start does without the marker, where that is better; None otherwise."""
    if prediction.verdict is Verdict.SAFE or not prediction.has_marker:
        return None
    without = predict_directories(paths, replace(conditions, has_marker=False))
    if _losses(without) >= _losses(prediction) or without.verdict is Verdict.DOES_NOT_START:
        return None
    return f"without {CLEAN_SHUTDOWN} {_text(without)}; now {_text(prediction)}. On a copy."


def _losses(prediction: Prediction) -> tuple[bool, int, int, int]:
    """Return how bad a start is, the worst first."""
    partitions = prediction.partitions
    return (
        prediction.verdict is Verdict.DOES_NOT_START,
        sum(one.outcome is Outcome.EMPTIED for one in partitions),
        sum(one.lost.records for one in partitions),
        sum(one.torn_bytes > 0 for one in partitions),
    )


def _text(prediction: Prediction) -> str:
    stops, emptied, records, torn = _losses(prediction)
    if stops:
        return "the broker does not start"
    text = f"{records} records are lost or hidden"
    if emptied:
        text += f" and {emptied} partitions emptied"
    return f"{text} and {torn} logs stay torn" if torn else text
