"""Floor entries of queries in plain Spark SQL."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

# 64 offsets, a little more than what lies between entries: a query meets two or three of them.
_BUCKET_BITS = 6
_PARTITION_SHIFT = 40


def join_buckets(session: SparkSession, queries: Path, entries: Path, out: Path) -> None:
    """Join by the bucket that an offset falls into; entries are in all that they reach into."""
    asked = session.read.parquet(str(queries)).alias("q")
    buckets = f.sequence(_bucket("entry_offset"), _bucket(f.col("next_offset") - 1))
    known = (
        session.read.parquet(str(entries))
        .withColumn("bucket", f.explode(buckets))
        .select(_key("bucket").alias("key"), "entry_offset", "next_offset", "entry_position_bytes")
        .alias("e")
    )
    found = (
        (_key(_bucket("q.offset")) == f.col("e.key"))
        & (f.col("q.offset") >= f.col("e.entry_offset"))
        & (f.col("q.offset") < f.col("e.next_offset"))
    )
    joined = asked.join(f.broadcast(known), found)
    _write(joined.select("q.*", "e.entry_offset", "e.entry_position_bytes"), out)


def last_of_window(session: SparkSession, queries: Path, entries: Path, out: Path) -> None:
    """Put queries and entries in one order, and take the last entry before each query."""
    known = session.read.parquet(str(entries)).select(
        "topic",
        "partition",
        f.col("entry_offset").alias("offset"),
        f.lit(0).alias("kind"),
        "entry_offset",
        "entry_position_bytes",
    )
    nothing = f.lit(None).cast("long")
    asked = session.read.parquet(str(queries)).select(
        "topic", "partition", "offset", f.lit(1).alias("kind"), nothing, nothing
    )
    before = Window.partitionBy("topic", "partition").orderBy("offset", "kind")
    answered = (
        asked.union(known)
        .toDF(*known.columns)
        .select(
            "topic",
            "partition",
            "offset",
            "kind",
            f.last("entry_offset", ignorenulls=True).over(before).alias("entry_offset"),
            f.last("entry_position_bytes", ignorenulls=True)
            .over(before)
            .alias("entry_position_bytes"),
        )
        .where("kind = 1")
        .drop("kind")
    )
    _write(answered, out)


def _bucket(offset: Column | str) -> Column:
    return f.shiftright(offset, _BUCKET_BITS)


def _key(bucket: Column | str) -> Column:
    """Return partition and bucket as one long, by which Spark joins fastest."""
    column = f.col(bucket) if isinstance(bucket, str) else bucket
    return f.shiftleft(f.col("partition").cast("long"), _PARTITION_SHIFT) + column


def _write(answers: DataFrame, out: Path) -> None:
    answers.write.parquet(str(out))
