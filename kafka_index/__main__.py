"""``python -m kafka_index`` runs the program if its console script is not on the PATH."""

import sys

from kafka_index.cli import main

sys.exit(main())
