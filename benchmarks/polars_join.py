"""Floor entries of queries by polars' join to the nearest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

_ENTRY = ("entry_offset", "entry_position_bytes")


def join_in_order(constants: Mapping[str, str | int | None], *paths: Path) -> None:
    """Answer in the order of the queries: join what has to be sorted alone, and sort it back."""
    queries, entries, out = paths
    asked = pl.read_parquet(queries / "*.parquet")
    found = (
        _join(asked.lazy().select("partition", "offset").with_row_index("row"), entries)
        .select("row", *_ENTRY)
        .sort("row")
        .select(_ENTRY)
        .collect()
    )
    _write(asked.hstack(found).lazy(), constants, out)


def join_in_any_order(constants: Mapping[str, str | int | None], *paths: Path) -> None:
    """Answer in the order of the offsets."""
    queries, entries, out = paths
    _write(_join(pl.scan_parquet(queries / "*.parquet"), entries), constants, out)


def _join(asked: pl.LazyFrame, entries: Path) -> pl.LazyFrame:
    known = pl.scan_parquet(entries).select("partition", *_ENTRY).sort("entry_offset")
    return asked.sort("offset").join_asof(
        known,
        left_on="offset",
        right_on="entry_offset",
        by="partition",
        coalesce=False,
        check_sortedness=False,
    )


def _write(answers: pl.LazyFrame, constants: Mapping[str, str | int | None], out: Path) -> None:
    columns = [
        pl.lit(value, dtype=pl.String if isinstance(value, str) else pl.Int64).alias(name)
        for name, value in constants.items()
    ]
    # In memory, which is faster here than the engine for what does not fit.
    answers.select("topic", "partition", "offset", *_ENTRY, *columns).sink_parquet(
        out, compression="snappy", engine="in-memory"
    )
