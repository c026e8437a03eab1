"""``python -m kafka_index``: the console script if it is not on the PATH."""

import sys

from kafka_index.cli import main

sys.exit(main())
