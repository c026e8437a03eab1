"""Builds, imports, lookups, restores and rewrites on either engine."""

from __future__ import annotations

import os

from kafka_index.execution import Engine, Listener, ThreadEngine
from kafka_index.spark.engine import SparkEngine

__all__ = ["Engine", "Listener", "master_of", "threads_of"]


def threads_of(engine: Engine) -> int:
    """Return the number of threads of an engine."""
    return engine.threads if isinstance(engine, ThreadEngine) else os.cpu_count() or 1


def master_of(engine: Engine) -> str | None:
    """Return the Spark master of an engine, if it was given."""
    return engine.master if isinstance(engine, SparkEngine) else None
