"""The effect of a broker's start on log directories, predicted without touching them."""

from kafka_index.startup.directories import StartConditions, predict_directories
from kafka_index.startup.identity import metadata_directory_of
from kafka_index.startup.metadata_log import read_started_cluster
from kafka_index.startup.partition_loading import load_partition
from kafka_index.startup.predicting import suggest
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
    "load_partition",
    "metadata_directory_of",
    "predict_directories",
    "read_started_cluster",
    "suggest",
]
