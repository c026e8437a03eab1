"""Entry point for listing the logs of a command, local and remote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.fs.registry import configure_stores, storage_options
from kafka_index.core.logdir.listing import Listing, list_any, list_dump


def list_logs(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Listing:
    """List local and remote segments of topics whose full name matches.

    With tiered storage, log directories are optional. Raises the errors of `list_dump` and
    `kafka_index.core.cluster.merged_listing.list_merged`.
    """
    if tiered is None:
        return list_dump(inputs, topics=topics)
    if tiered.keys:
        # Keys are options of the stores, which are sent to every Spark task.
        configure_stores(replace(storage_options(), tiered_keys=tiered.keys))
    # Slow to import and rarely needed; a single lookup takes about as long.
    from kafka_index.core.cluster.merged_listing import list_merged  # noqa: PLC0415

    return list_merged(inputs, tiered, topics=topics)


def list_dumps(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> list[Listing]:
    """List log directories one by one: a partition may be in several of them.

    With tiered storage there is one listing, and a partition is in one place.
    """
    if tiered is not None:
        return [list_logs(inputs, tiered, topics=topics)]
    return [list_any([path], topics=topics) for path in expand_directories(inputs)]
