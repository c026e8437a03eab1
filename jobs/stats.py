"""spark-submit jobs/stats.py --input PATH...: ``kafka-index stats`` on Spark.

The executors of a cluster are sent the package. Where the driver runs on the cluster too
(``--deploy-mode cluster``), add ``--py-files`` with the zip of ``make package``.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("kafka_index") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout

try:
    from kafka_index.cli import job_main
except ModuleNotFoundError as error:
    if (error.name or "kafka_index").startswith("kafka_index"):
        raise
    sys.stderr.write(
        f"kafka-index: error: the Python package {error.name} is not installed; install it and "
        "run again\n"
    )
    sys.exit(3)

if __name__ == "__main__":
    job_main("stats")
