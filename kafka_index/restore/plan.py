"""The plan of a restore: which partitions, from which dump each, under which topic ids.

Everything that can be refused is refused here, before the output has a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_index.dump.missing_offsets import Cleaning
from kafka_index.dump.replicas import Dump, Replica, base_replica
from kafka_index.errors import InputError
from kafka_index.layout.names import (
    INTERNAL_PREFIX,
    PARTITION_METADATA,
    TopicPartition,
    is_legal_topic,
)
from kafka_index.restore.log_files import Link
from kafka_index.restore.restored_partition import Salvage
from kafka_index.restore.until import Limit, Until
from kafka_index.storage import SegmentFile
from kafka_index.stores import is_remote
from kafka_index.stores.inputs import linked_out

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RestoreChoices:
    """The choices that decide the content of the output, besides the dumps."""

    salvage: Salvage = Salvage.PREFIX
    link: Link = Link.AUTO
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    known_topic_ids: Mapping[str, str] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str | None] = field(default_factory=dict)
    until: Until = field(default_factory=Until)
    settings: str = ""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to restore."""

    partition: TopicPartition
    base: Replica
    others: tuple[Replica, ...]
    topic_id: str
    log_start_offset: int | None
    cleaning: Cleaning
    limit: Limit | None = None

    @property
    def head_offset(self) -> int | None:
        """The offset of the first segment; None where a cleaner may have removed records."""
        if self.cleaning.is_compacted or self.base.tiered is not None:
            return None
        return max(int(self.base.segments.base_offsets[0]), self.log_start_offset or 0)

    def segments(self) -> list[SegmentFile]:
        """Return the segments of the base, under the name that they have in the output."""
        topic = self.partition.topic
        return [replace(each, topic=topic) for each in self.base.segments.files()]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The partitions of a restore, those without logs, and the choices."""

    partitions: tuple[PartitionPlan, ...]
    without_logs: Mapping[TopicPartition, str]
    choices: RestoreChoices
    dump: Dump

    @property
    def digest(self) -> str:
        """A digest that is equal for plans that write the same output."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def _lines(self) -> Iterator[str]:
        choices = self.choices
        yield f"{choices.salvage} {choices.until.text} {choices.settings}"
        # Links share the fate of the dump: copies that complete them would hide that.
        yield f"hard links: {choices.link is Link.HARD}"
        for each in self.partitions:
            topic = each.partition.topic
            # An id that is made for this run is another one in each.
            topic_id = "new" if topic in choices.topic_ids else each.topic_id
            yield f"{each.partition.directory_name} {topic_id} {each.log_start_offset}"
            for replica in (each.base, *each.others):
                yield replica.directory
                segments = replica.segments
                for columns in zip(
                    segments.base_offsets.tolist(),
                    segments.sizes_bytes.tolist(),
                    segments.mtimes_ns.tolist(),
                    strict=True,
                ):
                    yield " ".join(map(str, columns))


def plan_restore(dump: Dump, choices: RestoreChoices) -> RestorePlan:
    """Plan a restore."""
    _check_renames(dump, choices.renames)
    topic_ids = _topic_ids(dump, choices)
    partitions = []
    for partition in sorted(dump.replicas):
        base, *others = base_replica(dump.replicas[partition])
        topic = choices.renames.get(partition.topic, partition.topic)
        partitions.append(
            PartitionPlan(
                TopicPartition(topic, partition.partition),
                base,
                tuple(others),
                topic_ids[topic],
                _log_start(base, choices),
                _cleaning(base, others, choices),
                choices.until.limit_of(partition),
            )
        )
    without_logs = {
        partition: directory
        for partition, directory in dump.without_logs.items()
        if partition not in dump.replicas
    }
    partitions.sort(key=lambda each: each.partition)
    return RestorePlan(tuple(partitions), without_logs, choices, dump)


def as_begun(plan: RestorePlan, topic_ids: Mapping[str, str], until_ms: int | None) -> RestorePlan:
    """Return a plan with the ids that an earlier run of it made, and its point in time."""
    until = replace(plan.choices.until, time_ms=until_ms)
    partitions = tuple(
        replace(
            each,
            topic_id=topic_ids.get(each.partition.topic, each.topic_id),
            limit=until.limit_of(each.base.partition),
        )
        for each in plan.partitions
    )
    choices = replace(plan.choices, topic_ids=topic_ids, until=until)
    return replace(plan, partitions=partitions, choices=choices)


def found_topic_ids(dump: Dump) -> dict[str, str]:
    """Return the ids of topics by their ``partition.metadata``."""
    found: dict[str, tuple[str, str]] = {}
    for replicas in dump.replicas.values():
        for replica in replicas:
            if replica.topic_id is None:
                continue
            topic = replica.partition.topic
            known, where = found.setdefault(topic, (replica.topic_id, replica.directory))
            if known != replica.topic_id:
                raise InputError(
                    f"the topic id is not that of {where}",
                    path=replica.directory,
                    expected=known,
                    found=replica.topic_id,
                    hint="these are different topics of one name: restore them one by one",
                )
    return {topic: topic_id for topic, (topic_id, _) in found.items()}


def topics_without_id(dump: Dump, known: Mapping[str, str]) -> list[str]:
    """Return the topics whose id is not known, sorted."""
    return sorted({each.topic for each in dump.replicas}.difference(known))


def refuse_shared_ids(plan: RestorePlan) -> None:
    """Refuse topics that have one id: a cluster would know one of them."""
    topics: dict[str, str] = {}
    for each in plan.partitions:
        topic = topics.setdefault(each.topic_id, each.partition.topic)
        if topic != each.partition.topic:
            raise InputError(
                f"the topic id is that of {topic}, too",
                path=each.base.directory,
                found=each.topic_id,
                hint="is one a copy of the other? give it a new id with --rename OLD=NEW",
            )


def names_shown(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _check_renames(dump: Dump, renames: Mapping[str, str]) -> None:
    """Refuse names that are internal, taken, or not in the dump."""
    topics = {partition.topic for partition in (*dump.replicas, *dump.without_logs)}
    kept = topics.difference(renames)
    for old, new in renames.items():
        if old not in topics:
            raise InputError("--rename names a topic that is not in the input", found=old)
        if not is_legal_topic(new):
            raise InputError("--rename gives a topic a name that it cannot have", found=repr(new))
        for name in (old, new):
            if name.startswith(INTERNAL_PREFIX):
                raise InputError("an internal topic cannot be renamed", found=f"{old}={new}")
        if new in kept or list(renames.values()).count(new) > 1:
            raise InputError(
                "--rename gives two topics one name", found=new, hint="choose another name"
            )


def _topic_ids(dump: Dump, choices: RestoreChoices) -> dict[str, str]:
    ids = {**choices.known_topic_ids, **found_topic_ids(dump)}
    # A renamed topic is another topic.
    ids = {topic: topic_id for topic, topic_id in ids.items() if topic not in choices.renames}
    ids |= choices.topic_ids
    ids |= {old: ids[new] for old, new in choices.renames.items() if old not in ids}
    missing = topics_without_id(dump, ids)
    if missing:
        raise _without_id(dump, missing)
    return ids


def _without_id(dump: Dump, missing: Sequence[str]) -> InputError:
    """Return the error of topics without an id, which names a link that hides one."""
    directories = [
        replica.directory
        for partition, copies in dump.replicas.items()
        if partition.topic in missing
        for replica in copies
    ]
    paths = (f"{each}/{PARTITION_METADATA}" for each in directories if not is_remote(each))
    link = next(filter(None, map(linked_out, paths)), None)
    if link is not None:
        return InputError(
            f"the topic id of {names_shown(missing)} is not known, as this file is a link that "
            "leads out of the input",
            path=link.path,
            found=link.target,
            hint="give --follow-links to read it, or --new-topic-ids",
        )
    return InputError(
        "the topic id is not known: a broker takes a partition without one for stray, and an "
        "empty log takes its place",
        path=directories[0],
        found=f"no partition.metadata of {names_shown(missing)}",
        hint="add the partition.metadata files, or the metadata log or __consumer_offsets of "
        "the cluster to the input, or give --new-topic-ids",
    )


def _cleaning(base: Replica, others: Sequence[Replica], choices: RestoreChoices) -> Cleaning:
    """Return whether and how far a topic was compacted; a cleaned copy elsewhere proves it."""
    topic = base.partition.topic
    cleaning = Cleaning.of(
        topic,
        base.root.cleaned_to(base.partition),
        choices.policies.get(topic),
        is_topic_known=topic in choices.policies,
    )
    if any(each.root.cleaned_to(each.partition) is not None for each in others):
        return replace(cleaning, is_compacted=True)
    return cleaning


def _log_start(base: Replica, choices: RestoreChoices) -> int | None:
    given = choices.log_starts.get(base.partition)
    if given is not None:
        return given
    if base.tiered is not None:
        return base.tiered.log_start_offset
    return base.root.log_start_offset(base.partition)
