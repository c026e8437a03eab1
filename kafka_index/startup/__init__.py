"""The effect of a broker's start on log directories, predicted without touching them."""

from kafka_index.startup.conditions import StartConditions
from kafka_index.startup.directories import predict_directories, predict_start
from kafka_index.startup.prediction import (
    LoadedLog,
    Outcome,
    PartitionPrediction,
    Prediction,
    Refusal,
    SegmentAction,
    SegmentPrediction,
    Verdict,
)

__all__ = [
    "LoadedLog",
    "Outcome",
    "PartitionPrediction",
    "Prediction",
    "Refusal",
    "SegmentAction",
    "SegmentPrediction",
    "StartConditions",
    "Verdict",
    "predict_directories",
    "predict_start",
]
