"""The command line: options in, one call, something to read and an exit code out."""

from kafka_index.cli.app import job_main, main

__all__ = ["job_main", "main"]
