"""Query the records of a copied log directory with DuckDB and polars, without a cluster.

    pip install duckdb polars
    python examples/query_records.py [DUMP]

`kafka_index.read_records` returns a table that is read as it is asked for, by both.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import polars as pl

import kafka_index

DUMP = Path(__file__).parent / "dump"


def main(dump: Path) -> None:
    """Print the busiest keys of orders, and the records of transactions by hour."""
    records = kafka_index.read_records(dump, topics=r"orders\..*")
    with duckdb.connect() as connection:
        connection.register("records", records)
        connection.sql("""
            SELECT decode(key) AS key, count(*) AS records, sum(octet_length(value)) AS bytes
            FROM records GROUP BY key ORDER BY records DESC, key LIMIT 5
        """).show()

    # Only what is asked for is decoded: here neither keys nor values.
    committed = kafka_index.read_records(
        dump,
        topics="payments",
        columns=("partition", "offset", "timestamp"),
        isolation="read_committed",
    )
    by_hour = (
        pl.DataFrame(committed)
        .lazy()
        .group_by("partition", pl.col("timestamp").dt.truncate("1h"))
        .agg(pl.len(), pl.col("offset").max().alias("last_offset"))
        .sort("partition", "timestamp")
        .collect()
    )
    print(by_hour)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DUMP)
