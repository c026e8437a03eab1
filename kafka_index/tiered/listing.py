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
    """List the segments of log directories, joined with remote ones.

    Parameters
    ----------
    inputs : sequence of str
        Log directories, as for `list_dump`; with tiered storage there may be none.
    tiered : TieredOptions, optional
        Where the remote segments are, if there are any.
    topics : re.Pattern, optional
        Keep only topics that match it in full.

    Raises
    ------
    KafkaIndexError
        As `list_dump` and `kafka_index.tiered.dump.list_tiered_dump`.
    """
    if tiered is None:
        return list_dump(inputs, topics=topics)
    if tiered.keys:
        # They are options of the stores, which every task of Spark gets.
        configure_stores(replace(storage_options(), tiered_keys=tiered.keys))
    # Most runs need nothing of it, and a single lookup lasts about as long as its imports.
    from kafka_index.tiered.dump import list_tiered_dump  # noqa: PLC0415

    return list_tiered_dump(inputs, tiered, topics=topics)
