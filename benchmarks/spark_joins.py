"""Floor entries of queries, as one would write it: in Spark SQL, and in a `pandas_udf`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf

# 64 offsets, a little more than what lies between entries: a query meets two or three of them.
_BUCKET_BITS = 6
_PARTITION_SHIFT = 40
_POSITION = "entry_position_bytes"


def join_buckets(session: SparkSession, queries: Path, entries: Path, out: Path) -> None:
    """Join by the bucket that an offset falls into; entries are in all that they reach into."""
    read = session.read.parquet
    _write(floor_by_buckets(read(str(queries)), read(str(entries)), "offset"), out)


def floor_by_buckets(
    queries: DataFrame, entries: DataFrame, key: str, strategy: str = "broadcast"
) -> DataFrame:
    """Join queries by the bucket of a key, with entries that hold from `first` to `next`.

    The strategy is a hint for joins: without a broadcast, both sides are shuffled.
    """
    buckets = f.sequence(_bucket("first"), _bucket(f.col("next") - 1))
    known = (
        entries.withColumn("bucket", f.explode(buckets))
        .select(_key("bucket").alias("key"), "first", "next", "entry_offset", _POSITION)
        .alias("e")
    )
    asked = queries.alias("q")
    found = (
        (_key(_bucket(f"q.{key}")) == f.col("e.key"))
        & (f.col(f"q.{key}") >= f.col("e.first"))
        & (f.col(f"q.{key}") < f.col("e.next"))
    )
    joined = asked.join(known.hint(strategy), found)
    return joined.select("q.*", "e.entry_offset", f"e.{_POSITION}")


def floor_in_pandas(queries: DataFrame, entries: DataFrame, key: str) -> DataFrame:
    """Search broadcast arrays in a `pandas_udf`, partition by partition of each batch."""
    table = entries.orderBy("partition", "first").toArrow()
    columns = [table[name].to_numpy() for name in ("first", "entry_offset", _POSITION)]
    numbers, starts = np.unique(table["partition"].to_numpy(), return_index=True)
    split = zip(*(np.split(column, starts[1:]) for column in columns), strict=True)
    arrays = dict(zip(numbers.tolist(), split, strict=True))
    known = queries.sparkSession.sparkContext.broadcast(arrays)

    @pandas_udf(f"entry_offset long, {_POSITION} long")  # type: ignore[call-overload,untyped-decorator,unused-ignore]
    def floor(partitions: pd.Series, keys: pd.Series) -> pd.DataFrame:
        asked, of_queries = keys.to_numpy(), partitions.to_numpy()
        found = np.empty((2, len(asked)), np.int64)
        for number in np.unique(of_queries):
            own = of_queries == number
            first, offsets, positions = known.value[number]
            places = np.searchsorted(first, asked[own], side="right") - 1
            found[:, own] = offsets[places], positions[places]
        return pd.DataFrame({"entry_offset": found[0], _POSITION: found[1]})

    return queries.withColumn("found", floor("partition", key)).select(*queries.columns, "found.*")


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
