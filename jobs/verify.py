"""spark-submit jobs/verify.py --input PATH...: ``kafka-index verify`` on Spark.

The package is sent to the executors of a cluster. If the driver also runs on the cluster
(``--deploy-mode cluster``), add ``--py-files`` with the zip of ``make package``.
"""

import sys
from pathlib import Path

# In a checkout, the package is in the parent folder.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from kafka_index.cli import job_main

if __name__ == "__main__":
    job_main("verify")
