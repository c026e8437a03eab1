"""The door to the logs that a command reads, wherever their segments are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kafka_index.storage import Listing, list_dump
from kafka_index.stores import configure_stores, storage_options
from kafka_index.tiered.options import TieredOptions


def list_logs(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Listing:
    """List the segments of log directories, joined with remote ones, of topics that match in full.

    With tiered storage there may be no log directories. Raises the errors of `list_dump` and
    `kafka_index.dump.united_listing.list_united`.
    """
    if tiered is None:
        return list_dump(inputs, topics=topics)
    if tiered.keys:
        # They are options of the stores, which every task of Spark gets.
        configure_stores(replace(storage_options(), tiered_keys=tiered.keys))
    # Most runs need nothing of it, and a single lookup lasts about as long as its imports.
    from kafka_index.dump.united_listing import list_united  # noqa: PLC0415

    return list_united(inputs, tiered, topics=topics)
