"""The logs that a question is about, found without listing those of any other topic."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.names import (
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    split_directory_name,
)
from kafka_index.lookup import Inventory, collect_inventory
from kafka_index.reading.answers import UpperBound
from kafka_index.storage import expand_directories
from kafka_index.storage.directories import directory_exists, scan_directory
from kafka_index.storage.listing import did_you_mean

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import QuestionOptions

_PARTITIONS_SHOWN = 10


def inventory_of(question: QuestionOptions) -> Inventory:
    """List the partitions that a question is about.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    paths: Sequence[str] = question.inputs
    topics = None
    if question.tiered is None:
        numbers = sorted(set(question.partitions))
        paths = partition_directories(paths, question.topic, numbers)
    else:
        # The events of other directories matter too.
        topics = re.compile(re.escape(question.topic))
    return collect_inventory(
        paths,
        tiered=question.tiered,
        topics=topics,
        indexes=question.indexes,
        upper_bound=UpperBound(question.upper_bound),
    )


def partition_directories(
    logs: Sequence[str], topic: str, partitions: Sequence[int] = ()
) -> list[str]:
    """Return the directories of some partitions of a topic, or of all.

    The logs are data directories, topic-partition directories, or globs of either. Raises
    `InputError` if a path does not exist, or one of the partitions is in none of them.
    """
    given = expand_directories(logs)
    if not is_legal_topic(topic):
        raise InputError("not a legal topic", found=repr(topic))
    if not partitions:
        existing = _directories_of(given)
        found = [path for each, paths in existing.items() if each.topic == topic for path in paths]
        if not found:
            raise _absent(logs, topic, existing)
        return found
    found = []
    for number in partitions:
        name = TopicPartition(topic, number).directory_name
        inside = [os.path.join(directory, name) for directory in given]
        directories = [path for path in inside if directory_exists(path)]
        directories += [path for path in given if os.path.basename(path) == name]
        if not directories:
            raise _absent(logs, topic, _directories_of(given), number)
        found += directories
    return found


def _directories_of(given: Sequence[str]) -> Mapping[TopicPartition, list[str]]:
    """Return the directories of all partitions that exist, by partition."""
    found: dict[TopicPartition, list[str]] = {}
    for directory in given:
        paths = {os.path.basename(directory): directory}
        try:
            paths |= {entry.name: entry.path for entry in scan_directory(directory)}
        except InputError as error:
            # Such as a file, or a directory that is not there: it has a partition's name, or none.
            if is_retriable(error):
                raise
        for name, path in paths.items():
            split = split_directory_name(name)
            if split is not None and split[1] is DirectoryKind.LIVE:
                found.setdefault(split[0], []).append(path)
    return {partition: found[partition] for partition in sorted(found)}


def _absent(
    logs: Sequence[str],
    topic: str,
    existing: Mapping[TopicPartition, list[str]],
    number: int | None = None,
) -> InputError:
    """Return the error for a partition or a topic that is not there, with what is."""
    numbers = [each.partition for each in existing if each.topic == topic]
    shown = ", ".join(map(str, numbers[:_PARTITIONS_SHOWN]))
    more = len(numbers) - _PARTITIONS_SHOWN
    what = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    return InputError(
        f"no {what} here",
        path=", ".join(logs),
        found=f"its partitions {shown}{f' and {more} more' if more > 0 else ''}"
        if numbers
        else None,
        hint=None if numbers else did_you_mean(topic, (each.topic for each in existing)),
    )
