"""spark-submit jobs/lookup.py --logs PATH... --queries PATH ...: ``kafka-index lookup`` on Spark.

On a cluster add ``--py-files`` with the zip of ``make package``, unless the package is installed.
"""

import sys
from pathlib import Path

try:
    from kafka_index.cli import job_main
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("kafka_index"):
        raise
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout
    from kafka_index.cli import job_main

if __name__ == "__main__":
    job_main("lookup")
