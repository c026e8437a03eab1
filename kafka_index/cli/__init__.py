"""The command line: options in, one call, something to read and an exit code out."""

import sys

try:
    import os
    import signal

    def _leave(_number: int, _frame: object) -> None:
        # An exception could be lost in the machinery of imports, or come out as another error.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            os.write(2, b"kafka-index: error: interrupted\n")
        finally:
            os._exit(130)

    # These imports are a good part of a short command, and leave nothing to be cleaned up.
    _kept = None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            _kept = signal.signal(signal.SIGINT, _leave)
        except ValueError:
            # Another thread than the main one, which signals never reach.
            _kept = None
    try:
        from kafka_index.cli.app import job_main, main
    finally:
        if _kept is not None:
            signal.signal(signal.SIGINT, _kept)
except KeyboardInterrupt:
    sys.stderr.write("kafka-index: error: interrupted\n")
    sys.exit(130)

__all__ = ["job_main", "main"]
