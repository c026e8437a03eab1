"""The plan of a restore: the partitions, each with its base copy, topic ID and log end.

A request is rejected before the first file of the output is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from kafka_index.commands.restore.cluster import NODE_ID, SourceCluster, new_uuid
from kafka_index.commands.restore.request import Limit, Link, RestoreRequest
from kafka_index.commands.restore.result import (
    INCONSISTENT_TOPIC_ID,
    STRAY,
    RestoredPartition,
)
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.replicas import Dump, Replica, order_replicas
from kafka_index.core.errors import InputError, first_of
from kafka_index.core.format.names import (
    CONSUMER_OFFSETS_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
)
from kafka_index.core.fs.inputs import linked_out
from kafka_index.core.fs.paths import local_path, select_linkable
from kafka_index.core.log.missing_offsets import CheckpointOffsets
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import shared_budget

if TYPE_CHECKING:
    from kafka_index.commands.restore.transaction_markers import TransactionEdits

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to restore: base copy, other copies, and log end."""

    partition: TopicPartition
    base: Replica
    other_replicas: tuple[Replica, ...]
    topic_id: str
    known_offsets: CheckpointOffsets
    limit: Limit | None = None
    edits: TransactionEdits | None = None

    @property
    def log_start_offset(self) -> int:
        """The log start offset in the checkpoint or from ``--log-start``; 0 if unknown."""
        return self.known_offsets.start_offset or 0

    @property
    def cleaned_to(self) -> int | None:
        """The cleaner offset of the base copy; None if the checkpoint has no entry."""
        return self.base.root.cleaned_to(self.base.partition)

    @property
    def size_bytes(self) -> int:
        return int(self.base.segments.sizes_bytes.sum())

    @property
    def log_count(self) -> int:
        return len(self.base.segments.base_offsets)

    def with_own_checkpoints(self) -> PartitionPlan:
        """Return a smaller plan, with only the checkpoint entries of this partition."""
        base, *other_replicas = (
            replica.with_own_checkpoints() for replica in (self.base, *self.other_replicas)
        )
        return replace(self, base=base, other_replicas=tuple(other_replicas))

    def segments(self) -> list[SegmentFile]:
        """Return the segments of the base copy, with the topic name of the output."""
        topic = self.partition.topic
        return [replace(segment, topic=topic) for segment in self.base.segments.files()]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The partitions of a restore, the partitions without logs, and the new topic IDs."""

    partitions: tuple[PartitionPlan, ...]
    without_logs: Mapping[TopicPartition, str]
    new_ids: Mapping[str, str]
    request: RestoreRequest
    dump: Dump

    @property
    def inputs(self) -> list[str]:
        """The input paths and URIs, and the partition and metadata log directories in them."""
        remote = () if self.request.tiered is None else self.request.tiered.uris
        directories = [replica.directory for replica in self.dump.all_replicas]
        return [
            *self.request.inputs,
            *remote,
            *select_linkable((*directories, *self.dump.metadata_logs)),
        ]

    @property
    def metadata_output(self) -> str | None:
        """The path of ``--metadata-output``; None if the option is not given."""
        user_path = self.request.metadata_output
        return None if user_path is None else os.path.realpath(local_path(user_path))

    @property
    def digest(self) -> str:
        """A digest that is equal for plans that write the same output."""
        digest = hashlib.sha256()
        for line in self._digest_lines():
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    def _digest_lines(self) -> Iterator[str]:
        request = self.request
        options = (
            request.log_config,
            (request.config.properties or {}).get("log.cleanup.policy"),
            request.cluster,
            request.clamp_groups,
            self.metadata_output,
            sorted(
                (name, sorted(configs.items())) for name, configs in request.topic_configs.items()
            ),
        )
        yield f"{request.salvage} {request.until.digest_text} {options!r}"
        # A run with hard links must not be resumed with copies: some logs would remain hard links
        # without a warning.
        yield f"hard links: {request.link is Link.HARD}"
        if request.drop_keys:
            keys = repr(sorted(set(request.drop_keys))).encode()
            yield f"dropped keys: {hashlib.sha256(keys).hexdigest()}"
        for partition_plan in self.partitions:
            topic = partition_plan.partition.topic
            # Leave new topic IDs out of the digest: they are random and differ between runs.
            topic_id = "new" if topic in self.new_ids else partition_plan.topic_id
            start_offset = partition_plan.known_offsets.start_offset
            yield f"{partition_plan.partition.directory_name} {topic_id} {start_offset}"
            for replica in (partition_plan.base, *partition_plan.other_replicas):
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
    """Read the metadata of the source cluster, and committed offsets if the request needs them."""
    lacks_ids = bool(topics_without_id(dump, read_topic_ids(dump)))
    with_groups = lacks_ids or bool(request.seeds or request.renames)
    return SourceCluster.read(
        dump, shared_budget(request.max_decompressed_bytes), with_groups=with_groups
    )


def plan_restore(request: RestoreRequest, dump: Dump, source: SourceCluster) -> RestorePlan:
    """Plan a restore, and create new topic IDs."""
    _check_options(request, dump)
    topic_ids_by_name = {**source.topic_ids(), **read_topic_ids(dump)}
    unidentified_topics = topics_without_id(dump, topic_ids_by_name)
    new_ids = {topic: new_uuid() for topic in unidentified_topics} if request.new_topic_ids else {}
    new_ids |= {new_name: new_uuid() for new_name in request.renames.values()}
    topic_ids = _assign_topic_ids(dump, topic_ids_by_name, new_ids, request.renames)
    policies = source.cleanup_policies(request.config.properties, dump)
    partitions = []
    for partition in dump.replicas:
        base, *other_replicas = order_replicas(dump.replicas[partition])
        topic = request.renames.get(partition.topic, partition.topic)
        partitions.append(
            PartitionPlan(
                TopicPartition(topic, partition.partition),
                base,
                tuple(other_replicas),
                topic_ids[topic],
                _known_offsets(base, other_replicas, policies, request.log_starts),
                request.until.limit_for(partition),
            )
        )
    without_logs = {
        partition: directory
        for partition, directory in dump.without_logs.items()
        if partition not in dump.replicas
    }
    partitions.sort(key=attrgetter("partition"))
    return RestorePlan(tuple(partitions), without_logs, new_ids, request, dump)


def _check_options(request: RestoreRequest, dump: Dump) -> None:
    """Reject options about partitions or topics that the dump lacks."""
    unknown = set(request.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("the partition of --log-start is not in the input", found=name)
    if request.clamp_groups and all(
        partition.topic != CONSUMER_OFFSETS_TOPIC for partition in dump.replicas
    ):
        raise InputError(
            f"--clamp-groups requires {CONSUMER_OFFSETS_TOPIC}, which is not in the input",
            hint=f"add the partitions of {CONSUMER_OFFSETS_TOPIC} to the input, or include the "
            "topic in --topics",
        )
    _check_renames(dump, request.renames)


def _check_renames(dump: Dump, renames: Mapping[str, str]) -> None:
    """Reject renames of topics that the dump lacks, and new names that are used twice."""
    topics = {partition.topic for partition in (*dump.replicas, *dump.without_logs)}
    unrenamed_topics = topics.difference(renames)
    for old_name, new_name in renames.items():
        if old_name not in topics:
            raise InputError("the topic of --rename is not in the input", found=old_name)
        if new_name in unrenamed_topics or list(renames.values()).count(new_name) > 1:
            raise InputError(
                "after --rename, two topics would have the same name",
                found=new_name,
                hint="choose another name",
            )


def read_topic_ids(dump: Dump) -> dict[str, str]:
    """Return the topic IDs in ``partition.metadata``."""
    ids_and_directories: dict[str, tuple[str, str]] = {}
    for replica in dump.all_replicas:
        if replica.topic_id is None:
            continue
        topic = replica.partition.topic
        first_id, directory = ids_and_directories.setdefault(
            topic, (replica.topic_id, replica.directory)
        )
        if first_id != replica.topic_id:
            raise InputError(
                f"the topic ID differs from the ID in {directory}",
                path=replica.directory,
                expected=first_id,
                found=replica.topic_id,
                hint="the two topics have only the name in common: restore each topic separately",
            )
    return {topic: topic_id for topic, (topic_id, _) in ids_and_directories.items()}


def topics_without_id(dump: Dump, topic_ids: Mapping[str, str]) -> list[str]:
    """Return the topics whose ID is unknown, sorted."""
    return sorted({partition.topic for partition in dump.replicas}.difference(topic_ids))


def _assign_topic_ids(
    dump: Dump,
    source_ids: Mapping[str, str],
    new_ids: Mapping[str, str],
    renames: Mapping[str, str],
) -> dict[str, str]:
    # A renamed topic gets a new ID.
    ids = {topic: topic_id for topic, topic_id in source_ids.items() if topic not in renames}
    ids |= new_ids
    ids |= {
        old_name: ids[new_name] for old_name, new_name in renames.items() if old_name not in ids
    }
    missing = topics_without_id(dump, ids)
    if missing:
        raise _unknown_id_error(dump, missing)
    return ids


def _unknown_id_error(dump: Dump, missing: Sequence[str]) -> InputError:
    """Return the error for topics without an ID, with the path of a link that was not followed."""
    directories = [path.directory for path in dump.all_replicas if path.partition.topic in missing]
    paths = (f"{path}/{PARTITION_METADATA}" for path in directories)
    link = next(filter(None, map(linked_out, paths)), None)
    if link is not None:
        return InputError(
            f"the topic ID of {first_of(missing, _NAMES_SHOWN)} is unknown: partition.metadata "
            "is a link to a file outside the input",
            path=link.path,
            found=link.target,
            hint="give --follow-links to read the file, or --new-topic-ids",
        )
    return InputError(
        "the topic ID is unknown: a broker would treat the partition as stray, and replace it by "
        "an empty log",
        path=directories[0],
        found=f"no partition.metadata of {first_of(missing, _NAMES_SHOWN)}",
        hint="add partition.metadata, the metadata log or __consumer_offsets to the input, or "
        "give --new-topic-ids",
    )


def _known_offsets(
    base: Replica,
    other_replicas: Sequence[Replica],
    policies: Mapping[str, str | None],
    log_starts: Mapping[TopicPartition, int],
) -> CheckpointOffsets:
    """Return the offsets of a partition in the checkpoints of its copies.

    If another copy has a cleaner offset, the topic counts as compacted.
    """
    partition = base.partition
    policy, is_known = policies.get(partition.topic), partition.topic in policies
    known_offsets = CheckpointOffsets.read(base.root, partition, policy, is_topic_known=is_known)
    if any(replica.root.cleaned_to(replica.partition) is not None for replica in other_replicas):
        known_offsets = replace(
            known_offsets, cleaning=replace(known_offsets.cleaning, is_compacted=True)
        )
    log_start = known_offsets.start_offset if base.tiered is None else base.tiered.log_start_offset
    return replace(
        known_offsets,
        start_offset=log_starts.get(partition, log_start),
        end_offset=max(
            replica.root.committed_end(partition) for replica in (base, *other_replicas)
        ),
    )


def refuse_shared_ids(plan: RestorePlan) -> None:
    """Reject two topics with the same topic ID: a cluster would keep only one of the topics."""
    topics: dict[str, str] = {}
    for partition_plan in plan.partitions:
        topic = topics.setdefault(partition_plan.topic_id, partition_plan.partition.topic)
        if topic != partition_plan.partition.topic:
            raise InputError(
                f"topics {topic} and {partition_plan.partition.topic} have the same topic ID",
                path=partition_plan.base.directory,
                found=partition_plan.topic_id,
                hint="if one topic is a copy, give the copy a new ID with --rename OLD=NEW",
            )


def separate_strays(
    plan: RestorePlan, image: ClusterImage, properties: Mapping[str, str]
) -> tuple[RestorePlan, list[RestoredPartition]]:
    """Return the plan without partitions that the broker would not serve, and these partitions."""
    assigned_plans, strays = [], []
    for partition_plan in plan.partitions:
        code, number = STRAY, partition_plan.partition.partition
        reason = image.stray_reason(number, partition_plan.topic_id, int(properties[NODE_ID]))
        name = image.conflicting_name(partition_plan.topic_id, partition_plan.partition.topic)
        if reason is None and name is not None:
            code = INCONSISTENT_TOPIC_ID
            reason = (
                f"topic ID {partition_plan.topic_id} belongs to topic {name} in the metadata, so a "
                "broker does not serve the partition"
            )
        if reason is None:
            assigned_plans.append(partition_plan)
        else:
            stray = RestoredPartition(
                partition_plan.partition, partition_plan.base.directory, partition_plan.topic_id
            )
            stray.skip(code, f"{reason}; restore the partition to a fresh cluster")
            strays.append(stray)
    if not assigned_plans:
        raise InputError(
            "the metadata log assigns no partition of the input to this broker",
            path=plan.dump.metadata_logs[0],
            found=strays[0].reason,
            hint="use the metadata log of the same dump, or restore to a fresh cluster",
        )
    return replace(plan, partitions=tuple(assigned_plans)), strays


def resume_plan(
    plan: RestorePlan, topic_ids: Mapping[str, str], until_ms: int | None
) -> RestorePlan:
    """Return a plan with the new topic IDs and the point in time of an earlier run."""
    until = replace(plan.request.until, time_ms=until_ms)
    partitions = tuple(
        replace(
            partition_plan,
            topic_id=topic_ids.get(partition_plan.partition.topic, partition_plan.topic_id),
            limit=until.limit_for(partition_plan.base.partition),
        )
        for partition_plan in plan.partitions
    )
    request = replace(plan.request, until=until)
    return replace(plan, partitions=partitions, new_ids=topic_ids, request=request)
