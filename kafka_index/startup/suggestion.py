"""A change of data directories under which a start loses less: that start is predicted too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafka_index.layout.names import CLEAN_SHUTDOWN
from kafka_index.startup.directories import StartConditions, predict_directories
from kafka_index.startup.prediction import Outcome, Prediction, Verdict


def suggest(
    paths: Sequence[str], conditions: StartConditions, prediction: Prediction
) -> str | None:
    """Return what the same start does without the marker, where that is better; None otherwise.

    Parameters
    ----------
    paths, conditions
        Those of the prediction.
    prediction : Prediction
        With the marker, or whatever lies there.
    """
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
