"""Regenerate every golden file that ``make test`` uses: what Kafka itself leaves and answers.

    make golden

Needs what ``make conformance`` needs. Each folder has a manifest with Kafka's version, its
configuration and the SHA-256 of the files, which tests hold against the files.
"""

from __future__ import annotations

from .judge import Judge
from .kafka_jars import OLD_VERSION
from .make_golden_cleaned import write_golden_cleaned
from .make_golden_lookups import write_golden_lookups
from .make_golden_segments import write_golden_segments


def main() -> None:
    """Write them all."""
    with Judge() as judge:
        write_golden_segments(judge)
        write_golden_lookups(judge)
    with Judge(OLD_VERSION) as judge:
        write_golden_cleaned(judge)


if __name__ == "__main__":
    main()
