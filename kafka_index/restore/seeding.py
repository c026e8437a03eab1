"""What a fresh cluster is seeded with: the restored partitions, as the old cluster had them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.layout.names import TopicPartition
from kafka_index.restore.cluster import DIRECTORY_ID, NODE_ID
from kafka_index.restore.old_cluster import OldCluster
from kafka_index.restore.plan import RestorePlan
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.restore.seed import SeedContent, SeededPartition, SeededTopic

NOT_IN_DUMP = "not_in_dump"


@dataclass(slots=True)
class Seeding:
    """What is seeded, and what people should know of it.

    Parameters
    ----------
    content : SeedContent
        The records.
    notes : list of str
        What was assumed.
    """

    content: SeedContent
    notes: list[str] = field(default_factory=list)


def plan_seeding(
    plan: RestorePlan,
    restored: Iterable[RestoredPartition],
    old: OldCluster,
    configs: Mapping[str, Mapping[str, str]],
    properties: Mapping[str, str],
) -> Seeding:
    """Return what a fresh cluster is to know.

    Parameters
    ----------
    plan : RestorePlan
        The plan.
    restored : iterable of RestoredPartition
        What became of each partition; one that was left out is created empty, as its topic would
        have another number of partitions without it.
    old : OldCluster
        What is known of the cluster of the dumps.
    configs : mapping of str to mapping
        Settings that were given, by topic.
    properties : mapping of str to str
        Of the ``meta.properties`` of the output.
    """
    by_topic: dict[str, dict[int, RestoredPartition]] = {}
    for each in restored:
        by_topic.setdefault(each.partition.topic, {})[each.partition.partition] = each
    compacted = {each.partition.topic for each in plan.partitions if each.cleaning.is_compacted}
    ids = {each.partition.topic: each.topic_id for each in plan.partitions}
    content = SeedContent([], int(properties[NODE_ID]), properties[DIRECTORY_ID], 0)
    seeding = Seeding(content)
    topics, assumed = [], []
    largest = -1
    before = {new: name for name, new in plan.choices.renames.items()}
    for topic, partitions in sorted(by_topic.items()):
        if topic not in ids:
            continue
        old_name = before.get(topic, topic)
        found = old.configs(old_name, configs.get(topic, {}), is_compacted=topic in compacted)
        if found.is_assumed:
            assumed.append(topic)
        if found.withheld:
            names = ", ".join(found.withheld)
            seeding.notes.append(f"{topic}: these settings were not taken over: {names}")
        largest = max([largest, *(each.max_producer_id for each in partitions.values())])
        numbers = range(max(old.partition_count(old_name), max(partitions) + 1))
        seeded = [_seeded(old_name, number, partitions.get(number), old) for number in numbers]
        topics.append(SeededTopic(topic, ids[topic], found.values, seeded))
    if assumed:
        seeding.notes.append(
            "the settings of these topics are not known, so that nothing of them is deleted for "
            f"its age or size until you set them: {', '.join(assumed)}"
        )
    seeding.content = SeedContent(
        topics, content.node_id, content.directory_id, old.next_producer_id(largest)
    )
    return seeding


def partitions_not_in_dump(plan: RestorePlan, old: OldCluster) -> Sequence[TopicPartition]:
    """Return the partitions of the plan's topics that no dump has."""
    known = {each.partition for each in plan.partitions} | set(plan.without_logs)
    largest: dict[str, int] = {}
    for partition in known:
        largest[partition.topic] = max(largest.get(partition.topic, -1), partition.partition)
    before = {new: name for name, new in plan.choices.renames.items()}
    return [
        partition
        for topic, last in sorted(largest.items())
        for number in range(max(last + 1, old.partition_count(before.get(topic, topic))))
        if (partition := TopicPartition(topic, number)) not in known
    ]


def _seeded(
    topic: str, number: int, restored: RestoredPartition | None, old: OldCluster
) -> SeededPartition:
    partition = TopicPartition(topic, number)
    last = -1 if restored is None else restored.last_epoch
    epochs = (last, old.committed_epoch(partition), old.leader_epoch(partition))
    # What is appended from now on is of an epoch of its own.
    return SeededPartition(number, max(epochs) + 1)
