"""spark-submit jobs/build_index.py --input PATH... --output PATH: ``kafka-index build`` on Spark.

The package is sent to the executors of a cluster. If the driver also runs on the cluster
(``--deploy-mode cluster``), add ``--py-files`` with the zip of ``make package``.
"""

import sys
from pathlib import Path

# In a checkout, the package is in the parent folder.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from kafka_index.cli import job_main

if __name__ == "__main__":
    job_main("build")
