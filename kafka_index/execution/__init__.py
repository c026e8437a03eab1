"""Units of work on whatever runs them: threads of this process, or the tasks of Spark.

A command supplies works, a function of one work, and a fold of the results. The rooms of the
commands know `Workers` only; which engine starts them is chosen by who calls the command.
"""

from kafka_index.execution.engine import (
    GROWN_WAVE,
    Engine,
    Listener,
    Parts,
    Waves,
    Workers,
)
from kafka_index.execution.threads import ThreadEngine, map_requests

__all__ = [
    "GROWN_WAVE",
    "Engine",
    "Listener",
    "Parts",
    "ThreadEngine",
    "Waves",
    "Workers",
    "map_requests",
]
