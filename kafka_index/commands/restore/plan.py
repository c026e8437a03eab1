"""The plan of a restore: its partitions, the base copy and topic ID of each, and its log end.

Requests that can be rejected are rejected before the output has a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_index.commands.restore.cluster import NODE_ID, SourceCluster, new_uuid
from kafka_index.commands.restore.request import Limit, Link, RestoreRequest
from kafka_index.commands.restore.result import (
    INCONSISTENT_TOPIC_ID,
    STRAY,
    RestoredPartition,
)
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.replicas import Dump, Replica, base_replica
from kafka_index.core.errors import InputError, first_of
from kafka_index.core.format.names import (
    CONSUMER_OFFSETS_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
)
from kafka_index.core.fs.inputs import linked_out
from kafka_index.core.fs.paths import local_path, with_links
from kafka_index.core.log.missing_offsets import CheckpointOffsets
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import shared_budget

if TYPE_CHECKING:
    from kafka_index.commands.restore.transaction_markers import TransactionEdits

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to restore: its base copy, its other copies, and its end."""

    partition: TopicPartition
    base: Replica
    others: tuple[Replica, ...]
    topic_id: str
    known: CheckpointOffsets
    limit: Limit | None = None
    edits: TransactionEdits | None = None

    @property
    def log_start_offset(self) -> int:
        """The log start offset in the checkpoint or from ``--log-start``; 0 for none."""
        return self.known.start_offset or 0

    @property
    def cleaned_to(self) -> int | None:
        """The cleaner offset of the base copy, None if it has no such checkpoint."""
        return self.base.root.cleaned_to(self.base.partition)

    @property
    def size_bytes(self) -> int:
        return int(self.base.segments.sizes_bytes.sum())

    @property
    def log_count(self) -> int:
        return len(self.base.segments.base_offsets)

    def alone(self) -> PartitionPlan:
        """Return the plan without the checkpoint entries of other partitions."""
        base, *others = (each.alone() for each in (self.base, *self.others))
        return replace(self, base=base, others=tuple(others))

    def segments(self) -> list[SegmentFile]:
        """Return the segments of the base copy, with the topic name of the output."""
        topic = self.partition.topic
        return [replace(each, topic=topic) for each in self.base.segments.files()]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The partitions of a restore, the partitions without logs, and the new topic IDs."""

    partitions: tuple[PartitionPlan, ...]
    without_logs: Mapping[TopicPartition, str]
    made_ids: Mapping[str, str]
    request: RestoreRequest
    dump: Dump

    @property
    def inputs(self) -> list[str]:
        """The inputs as given, and the directories in them; a link may lead elsewhere."""
        remote = () if self.request.tiered is None else self.request.tiered.uris
        directories = [each.directory for each in self.dump.all_replicas]
        return [
            *self.request.inputs,
            *remote,
            *with_links((*directories, *self.dump.metadata_logs)),
        ]

    @property
    def metadata_output(self) -> str | None:
        """The directory of the metadata log; None if it has no directory of its own."""
        given = self.request.metadata_output
        return None if given is None else os.path.realpath(local_path(given))

    @property
    def digest(self) -> str:
        """A digest that is equal for plans that write the same output."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    def _lines(self) -> Iterator[str]:
        request = self.request
        options = (
            request.log_config,
            (request.config.properties or {}).get("log.cleanup.policy"),
            request.cluster,
            request.clamp_groups,
            self.metadata_output,
            sorted((name, sorted(each.items())) for name, each in request.topic_configs.items()),
        )
        yield f"{request.salvage} {request.until.text} {options!r}"
        # A run with hard links must not be resumed with copies: its first logs would stay linked to
        # the dump, unnoticed.
        yield f"hard links: {request.link is Link.HARD}"
        if request.drop_keys:
            keys = repr(sorted(set(request.drop_keys))).encode()
            yield f"dropped keys: {hashlib.sha256(keys).hexdigest()}"
        for each in self.partitions:
            topic = each.partition.topic
            # A new topic ID is random, and differs in each run.
            topic_id = "new" if topic in self.made_ids else each.topic_id
            yield f"{each.partition.directory_name} {topic_id} {each.known.start_offset}"
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


def read_source_cluster(request: RestoreRequest, dump: Dump) -> SourceCluster:
    """Read the source cluster; its groups only if the request needs them."""
    lacks_ids = bool(topics_without_id(dump, found_topic_ids(dump)))
    with_groups = lacks_ids or bool(request.seeds or request.renames)
    return SourceCluster.read(
        dump, shared_budget(request.max_decompressed_bytes), with_groups=with_groups
    )


def plan_restore(request: RestoreRequest, dump: Dump, source: SourceCluster) -> RestorePlan:
    """Plan a restore, and create new topic IDs."""
    _check_choices(request, dump)
    known = {**source.topic_ids(), **found_topic_ids(dump)}
    missing = topics_without_id(dump, known)
    made = {topic: new_uuid() for topic in missing} if request.new_topic_ids else {}
    made |= {new: new_uuid() for new in request.renames.values()}
    topic_ids = _topic_ids(dump, known, made, request.renames)
    policies = source.cleanup_policies(request.config.properties, dump)
    partitions = []
    for partition in dump.replicas:
        base, *others = base_replica(dump.replicas[partition])
        topic = request.renames.get(partition.topic, partition.topic)
        partitions.append(
            PartitionPlan(
                TopicPartition(topic, partition.partition),
                base,
                tuple(others),
                topic_ids[topic],
                _known_offsets(base, others, policies, request.log_starts),
                request.until.limit_of(partition),
            )
        )
    without_logs = {
        partition: directory
        for partition, directory in dump.without_logs.items()
        if partition not in dump.replicas
    }
    partitions.sort(key=lambda each: each.partition)
    return RestorePlan(tuple(partitions), without_logs, made, request, dump)


def _check_choices(request: RestoreRequest, dump: Dump) -> None:
    """Reject options about partitions or topics that the dump lacks."""
    unknown = set(request.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("--log-start names a partition that is not in the input", found=name)
    if request.clamp_groups and all(each.topic != CONSUMER_OFFSETS_TOPIC for each in dump.replicas):
        raise InputError(
            "--clamp-groups needs the offsets that groups committed",
            expected=CONSUMER_OFFSETS_TOPIC,
            hint="add its partitions to the input, or include the topic in --topics",
        )
    _check_renames(dump, request.renames)


def _check_renames(dump: Dump, renames: Mapping[str, str]) -> None:
    """Reject renames of topics that the dump lacks, and new names that are used twice."""
    topics = {partition.topic for partition in (*dump.replicas, *dump.without_logs)}
    kept = topics.difference(renames)
    for old, new in renames.items():
        if old not in topics:
            raise InputError("--rename names a topic that is not in the input", found=old)
        if new in kept or list(renames.values()).count(new) > 1:
            raise InputError(
                "--rename gives two topics one name", found=new, hint="choose another name"
            )


def found_topic_ids(dump: Dump) -> dict[str, str]:
    """Return the topic IDs in ``partition.metadata``."""
    found: dict[str, tuple[str, str]] = {}
    for replica in dump.all_replicas:
        if replica.topic_id is None:
            continue
        topic = replica.partition.topic
        known, where = found.setdefault(topic, (replica.topic_id, replica.directory))
        if known != replica.topic_id:
            raise InputError(
                f"the topic ID differs from the ID in {where}",
                path=replica.directory,
                expected=known,
                found=replica.topic_id,
                hint="these are different topics with the same name: restore them separately",
            )
    return {topic: topic_id for topic, (topic_id, _) in found.items()}


def topics_without_id(dump: Dump, known: Mapping[str, str]) -> list[str]:
    """Return the topics whose ID is unknown, sorted."""
    return sorted({each.topic for each in dump.replicas}.difference(known))


def _topic_ids(
    dump: Dump, known: Mapping[str, str], made: Mapping[str, str], renames: Mapping[str, str]
) -> dict[str, str]:
    # A renamed topic is another topic.
    ids = {topic: topic_id for topic, topic_id in known.items() if topic not in renames}
    ids |= made
    ids |= {old: ids[new] for old, new in renames.items() if old not in ids}
    missing = topics_without_id(dump, ids)
    if missing:
        raise _without_id(dump, missing)
    return ids


def _without_id(dump: Dump, missing: Sequence[str]) -> InputError:
    """Return the error for topics without an ID; it names a link that hides the ID."""
    directories = [each.directory for each in dump.all_replicas if each.partition.topic in missing]
    paths = (f"{each}/{PARTITION_METADATA}" for each in directories)
    link = next(filter(None, map(linked_out, paths)), None)
    if link is not None:
        return InputError(
            f"the topic ID of {first_of(missing, _NAMES_SHOWN)} is unknown: this file is a link "
            "to a file outside the input",
            path=link.path,
            found=link.target,
            hint="give --follow-links to read it, or --new-topic-ids",
        )
    return InputError(
        "the topic ID is unknown: a broker treats a partition without an ID as stray, and "
        "replaces it by an empty log",
        path=directories[0],
        found=f"no partition.metadata of {first_of(missing, _NAMES_SHOWN)}",
        hint="add the partition.metadata files, or the metadata log or __consumer_offsets of "
        "the cluster to the input, or give --new-topic-ids",
    )


def _known_offsets(
    base: Replica,
    others: Sequence[Replica],
    policies: Mapping[str, str | None],
    log_starts: Mapping[TopicPartition, int],
) -> CheckpointOffsets:
    """Return the offsets of a partition in the checkpoints of all copies.

    A copy that was cleaned elsewhere proves that the topic is compacted.
    """
    partition = base.partition
    policy, is_known = policies.get(partition.topic), partition.topic in policies
    known = CheckpointOffsets.read(base.root, partition, policy, is_topic_known=is_known)
    if any(each.root.cleaned_to(each.partition) is not None for each in others):
        known = replace(known, cleaning=replace(known.cleaning, is_compacted=True))
    log_start = known.start_offset if base.tiered is None else base.tiered.log_start_offset
    return replace(
        known,
        start_offset=log_starts.get(partition, log_start),
        end_offset=max(each.root.committed_end(partition) for each in (base, *others)),
    )


def refuse_shared_ids(plan: RestorePlan) -> None:
    """Reject topics with the same ID, because a cluster would have only one of them."""
    topics: dict[str, str] = {}
    for each in plan.partitions:
        topic = topics.setdefault(each.topic_id, each.partition.topic)
        if topic != each.partition.topic:
            raise InputError(
                f"topic {topic} has the same topic ID",
                path=each.base.directory,
                found=each.topic_id,
                hint="is one a copy of the other? give it a new ID with --rename OLD=NEW",
            )


def without_strays(
    plan: RestorePlan, image: ClusterImage, properties: Mapping[str, str]
) -> tuple[RestorePlan, list[RestoredPartition]]:
    """Separate the partitions that the broker would not serve."""
    kept, strays = [], []
    for each in plan.partitions:
        code, number = STRAY, each.partition.partition
        why = image.why_stray(number, each.topic_id, int(properties[NODE_ID]))
        name = image.other_name(each.topic_id, each.partition.topic)
        if why is None and name is not None:
            code = INCONSISTENT_TOPIC_ID
            why = (
                f"its topic ID {each.topic_id} belongs to {name} in the metadata: it is not served"
            )
        if why is None:
            kept.append(each)
        else:
            stray = RestoredPartition(each.partition, each.base.directory, each.topic_id)
            stray.leave_out(code, f"{why}; restore it to a fresh cluster")
            strays.append(stray)
    if not kept:
        raise InputError(
            "the metadata log assigns none of the partitions to this broker",
            path=plan.dump.metadata_logs[0],
            found=strays[0].reason,
            hint="is the metadata log from the same dump? otherwise restore to a fresh cluster",
        )
    return replace(plan, partitions=tuple(kept)), strays


def as_begun(plan: RestorePlan, topic_ids: Mapping[str, str], until_ms: int | None) -> RestorePlan:
    """Return a plan with the new topic IDs and the point in time of an earlier run."""
    until = replace(plan.request.until, time_ms=until_ms)
    partitions = tuple(
        replace(
            each,
            topic_id=topic_ids.get(each.partition.topic, each.topic_id),
            limit=until.limit_of(each.base.partition),
        )
        for each in plan.partitions
    )
    request = replace(plan.request, until=until)
    return replace(plan, partitions=partitions, made_ids=topic_ids, request=request)
