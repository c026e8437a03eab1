"""What a broker does to log directories when it starts, predicted without touching them."""

from kafka_index.startup.directories import StartConditions, predict_directories
from kafka_index.startup.partition_loading import load_partition
from kafka_index.startup.prediction import (
    Outcome,
    PartitionPrediction,
    Prediction,
    Refusal,
    SegmentAction,
    SegmentPrediction,
    Verdict,
)

__all__ = [
    "Outcome",
    "PartitionPrediction",
    "Prediction",
    "Refusal",
    "SegmentAction",
    "SegmentPrediction",
    "StartConditions",
    "Verdict",
    "load_partition",
    "predict_directories",
]
