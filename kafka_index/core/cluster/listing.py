"""The door to the logs that a command reads, wherever their segments are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.fs.registry import configure_stores, storage_options
from kafka_index.core.logdir.listing import Listing, list_dump


def list_logs(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Listing:
    """List the segments of log directories, joined with remote ones, of topics that match in full.

    With tiered storage there may be no log directories. Raises the errors of `list_dump` and
    `kafka_index.core.cluster.merged_listing.list_united`.
    """
    if tiered is None:
        return list_dump(inputs, topics=topics)
    if tiered.keys:
        # They are options of the stores, which every task of Spark gets.
        configure_stores(replace(storage_options(), tiered_keys=tiered.keys))
    # Most runs need nothing of it, and a single lookup lasts about as long as its imports.
    from kafka_index.core.cluster.merged_listing import list_merged  # noqa: PLC0415

    return list_merged(inputs, tiered, topics=topics)
