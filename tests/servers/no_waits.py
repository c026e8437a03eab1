"""Requests to a store are repeated almost at once, in the process that imports this.

It refreshes the locks that it holds there every second.
"""

from datetime import timedelta

from kafka_index.core.fs import object_store
from kafka_index.core.output import locks

object_store._FIRST_WAIT_SECONDS = 0.01
object_store._BACKOFF = {
    "init_backoff": timedelta(milliseconds=5),
    "max_backoff": timedelta(milliseconds=20),
    "base": 2,
}
locks._REFRESH_SECONDS = 1.0
