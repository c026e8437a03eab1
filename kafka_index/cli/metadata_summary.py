"""The summary of ``metadata``: what was read, how much there is of what, and what is unknown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from kafka_index.cli.terminal import print_text
from kafka_index.cli.text import Paint, plural
from kafka_index.metadata import ClusterMetadata


def print_summary(found: ClusterMetadata, stream: TextIO, *, as_json: bool) -> None:
    """Print the summary, as text or as one JSON object."""
    if as_json:
        stream.write(json.dumps(_as_object(found)) + "\n")
        return
    print_text(stream, _text(found, Paint(stream)))


def _text(found: ClusterMetadata, paint: Paint) -> Iterator[str]:
    for source in found.sources:
        snapshot = "" if source.snapshot is None else f"snapshot {source.snapshot}, "
        yield (
            f"{paint.strong(source.path)}: {snapshot}{plural(source.records, 'record')}, "
            f"end offset {source.end_offset}"
        )
    yield from (f"{paint.strong(title)}: {text}" for title, text in _lines(found))
    for topic, counts in found.counts.items():
        known = [f"{name.name} {count}" for name, count in sorted(counts.items()) if name.is_known]
        yield f"{paint.strong(f'records of {topic}')}: {', '.join(known) or 'none'}"
        unknown = [f"{n.name} {count}" for n, count in sorted(counts.items()) if not n.is_known]
        if unknown:
            yield paint.notable(f"unknown, not decoded: {', '.join(unknown)}")


def _lines(found: ClusterMetadata) -> Iterator[tuple[str, str]]:
    cluster = found.cluster
    if cluster is not None:
        partitions = sum(len(topic.partitions) for topic in cluster.topics.values())
        block = cluster.producer_ids
        yield (
            "cluster",
            f"{plural(len(cluster.topics), 'topic')}, {plural(partitions, 'partition')}, "
            f"{plural(len(cluster.brokers), 'broker')}"
            + ("" if block is None else f", next producer id {block.next_producer_id}"),
        )
        features = ", ".join(f"{name} {level}" for name, level in sorted(cluster.features.items()))
        yield "features", features or "none"
    if found.groups is not None:
        kinds = Counter(group.kind for group in found.groups)
        yield (
            "groups",
            f"{_counted(kinds)}; {plural(len(found.offsets or []), 'committed offset')}",
        )
    if found.transactions is not None:
        yield "transactions", _counted(Counter(one.state for one in found.transactions))
    if found.remote_segments is not None:
        yield "remote segments", _counted(Counter(one.state.name for one in found.remote_segments))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _as_object(found: ClusterMetadata) -> dict[str, object]:
    cluster = found.cluster
    return {
        "sources": [source._asdict() for source in found.sources],
        "topics": None if cluster is None else len(cluster.topics),
        "partitions": None
        if cluster is None
        else sum(len(topic.partitions) for topic in cluster.topics.values()),
        "brokers": None if cluster is None else len(cluster.brokers),
        "features": None if cluster is None else cluster.features,
        "next_producer_id": None
        if cluster is None or cluster.producer_ids is None
        else cluster.producer_ids.next_producer_id,
        "groups": None if found.groups is None else Counter(one.kind for one in found.groups),
        "committed_offsets": None if found.offsets is None else len(found.offsets),
        "transactions": None
        if found.transactions is None
        else Counter(one.state for one in found.transactions),
        "remote_segments": None
        if found.remote_segments is None
        else Counter(one.state.name for one in found.remote_segments),
        "records": {
            topic: {name.name: count for name, count in sorted(counts.items()) if name.is_known}
            for topic, counts in found.counts.items()
        },
        "unknown_records": {
            topic: {name.name: count for name, count in sorted(counts.items()) if not name.is_known}
            for topic, counts in found.counts.items()
        },
        "faults": found.faults.total,
    }
