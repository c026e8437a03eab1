"""The command line: options in, one call, something to read and an exit code out."""

import sys

try:
    from kafka_index.cli.app import job_main, main
except KeyboardInterrupt:
    # These imports are a good part of a short command: Ctrl-C there is no error of the program.
    sys.stderr.write("kafka-index: error: interrupted\n")
    sys.exit(130)

__all__ = ["job_main", "main"]
