"""The results of ``metadata`` and of `list_partitions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kafka_index.core.errors import KafkaIndexError, plural
from kafka_index.core.format.human import format_bytes
from kafka_index.core.job.result import BAD, Section, TableResult


@dataclass(frozen=True, repr=False)
class Metadata(TableResult):
    """The result of `read_metadata`: the rows of a table, or the number of rows of each table.

    Parameters
    ----------
    rows : pa.Table
        The rows.
    ended : RunOutcome
        Damage if records cannot be decoded, environment for failed reads.
    unread : tuple of str
        Input entries that were not read, with reasons.
    what : str or None
        The table; None for the overview.
    faults : tuple of KafkaIndexError
        The first reasons why records are missing.
    fault_count : int
        The number of all reasons.
    overview : mapping
        For the overview: partitions that were read, contents of the cluster, and records by topic
        and type; None for a topic that is not in the input.
    """

    what: str | None = None
    faults: tuple[KafkaIndexError, ...] = ()
    fault_count: int = 0
    overview: Mapping[str, Any] = field(default_factory=dict)

    command = "metadata"

    @property
    def headline(self) -> str:
        """The number of rows, and the first fault."""
        if self.what is not None:
            text = f"{self.what}: {plural(self.rows.num_rows, 'row')}"
        else:
            sources = self.overview["sources"]
            records = plural(sum(source["records"] for source in sources), "record")
            text = f"{records} in {plural(len(sources), 'partition')} of Kafka's own topics"
        if not self.fault_count:
            return text
        return f"{text}; {plural(self.fault_count, 'error')}, such as: {self.faults[0]}"

    @property
    def facts(self) -> Sequence[str]:
        """The lines of the overview."""
        return tuple(_overview_lines(self.overview)) if self.overview else ()

    @property
    def sections(self) -> Sequence[Section]:
        """The reasons why records are missing."""
        title = f"{plural(self.fault_count, 'error')}: records are corrupt or missing:"
        return [Section(title, list(map(str, self.faults)), BAD, self.fault_count, "error")]

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of reasons why records are missing."""
        return {"faults": self.fault_count}


def _overview_lines(overview: Mapping[str, Any]) -> Iterator[str]:
    for source in overview["sources"]:
        snapshot = "" if source["snapshot"] is None else f"snapshot {source['snapshot']}, "
        records = plural(source["records"], "record")
        yield f"{source['path']}: {snapshot}{records}, end offset {source['end_offset']}"
    if overview["topics"] is not None:
        counts = [plural(overview[f"{noun}s"], noun) for noun in ("topic", "partition", "broker")]
        if overview["next_producer_id"] is not None:
            counts.append(f"next producer id {overview['next_producer_id']}")
        yield f"cluster: {', '.join(counts)}"
        levels = (f"{name} {level}" for name, level in sorted(overview["features"].items()))
        yield f"features: {', '.join(levels) or 'none'}"
    if overview["groups"] is not None:
        offsets = plural(overview["committed_offsets"] or 0, "committed offset")
        yield f"groups: {_counted(overview['groups'])}; {offsets}"
    for name in ("transactions", "remote_segments"):
        if overview[name] is not None:
            yield f"{name.replace('_', ' ')}: {_counted(overview[name])}"
    for topic, counts_by_type in overview["records"].items():
        known = ", ".join(f"{name} {count}" for name, count in counts_by_type.items())
        yield f"records of {topic}: {known or 'none'}"
        unknown = overview["unknown_records"][topic].items()
        if unknown:
            texts = ", ".join(f"{name} {count}" for name, count in unknown)
            yield f"unknown record types, not decoded: {texts}"
    for topic, future in overview["future_timestamps"].items():
        yield (
            f"timestamps of {topic} in the future delay retention by time: "
            f"{plural(future['segments'], 'segment')}, {format_bytes(future['size_bytes'])}"
        )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


@dataclass(frozen=True, repr=False)
class PartitionList(TableResult):
    """The result of `list_partitions`: a row per partition.

    Parameters
    ----------
    rows : pa.Table
        Topic, partition, path, log start and end offset, number and size of segments. If the end of
        a log cannot be read, it is null, and `reason` has the error.
    ended : RunOutcome
        Damage or environment if the end of a log cannot be read.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    command = "lookup"

    @property
    def headline(self) -> str:
        """The number of partitions and topics, and of log ends that cannot be read."""
        topics = len(set(self.rows["topic"].to_pylist()))
        text = f"{plural(self.rows.num_rows, 'partition')} of {plural(topics, 'topic')}"
        unknown = self.rows["log_end_offset"].null_count
        return f"{text}; the log end offset of {unknown:,} is unknown" if unknown else text

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions and segments."""
        segments = sum(self.rows["segments"].to_pylist())
        return {"partitions": self.rows.num_rows, "segments": segments}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of the logs."""
        return {"logs": sum(self.rows["size_bytes"].to_pylist())}

    def _shown(self) -> pa.Table:
        """Return the rows with the longest column, the path, last."""
        names = [name for name in self.rows.column_names if name != "path"]
        return self.rows.select([*names, "path"])
