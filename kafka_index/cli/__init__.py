"""The command line: converts options to a request, runs it, and prints the result."""

import sys

try:
    import os
    import signal

    def _leave(_number: int, _frame: object) -> None:
        # Exit instead of raising KeyboardInterrupt: during imports, the exception could be lost, or
        # turned into another error.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            os.write(2, b"kafka-index: error: interrupted\n")
        finally:
            os._exit(130)

    # These imports take a large part of the time of a short command. If SIGINT ends the process
    # here, nothing needs a cleanup.
    _kept = None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            _kept = signal.signal(signal.SIGINT, _leave)
        except ValueError:
            # Outside of the main thread, no signal handler can be set.
            _kept = None
    try:
        from kafka_index.cli.app import job_main, main
    finally:
        if _kept is not None:
            signal.signal(signal.SIGINT, _kept)
except KeyboardInterrupt:
    sys.stderr.write("kafka-index: error: interrupted\n")
    sys.exit(130)
except ModuleNotFoundError as _error:
    if (_error.name or "kafka_index").startswith("kafka_index"):
        raise
    sys.stderr.write(
        f"kafka-index: error: the Python package {_error.name} is not installed; install it and "
        "run again\n"
    )
    sys.exit(3)

__all__ = ["job_main", "main"]
