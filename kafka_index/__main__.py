"""``python -m kafka_index``: the console script, where its folder is not on the PATH."""

import sys

from kafka_index.cli import main

sys.exit(main())
