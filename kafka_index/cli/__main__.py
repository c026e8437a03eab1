"""``python -m kafka_index.cli``: the console script where none is installed."""

import sys

from kafka_index.cli import main

sys.exit(main())
