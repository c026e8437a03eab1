"""Predict what a broker does when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.predict.request import PREDICT
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths

if TYPE_CHECKING:
    from kafka_index.commands.predict.predict_job import Prediction


def predict(
    paths: Paths,
    *,
    metadata: Path | None = None,
    config: Config | None = None,
    known_losses: Path | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Prediction:
    """Predict what a broker does to its log directories when it starts.

    Nothing is written.

    Parameters
    ----------
    paths : path, or list of path
        All data directories of one broker, on a local disk.
    metadata : path, optional
        The metadata log directory. By default, the directory in the settings, or a data directory.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as the broker's ``server.properties``.
    known_losses : path, optional
        A restore report. Offsets that the report lists as lost are not predicted as losses.
    max_decompressed_bytes : int
        Memory limit for decompressed metadata, in bytes.

    Returns
    -------
    Prediction
        The verdict, the partitions, and a row per segment.

    Raises
    ------
    InputError
        A directory cannot be read, or is locked by a running broker.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> prediction = kafka_index.predict("examples/dump")
    >>> prediction.verdict.value
    'safe'
    >>> prediction.counts["records_lost"]
    0
    """
    result: Prediction = call(PREDICT, locals())
    return result
