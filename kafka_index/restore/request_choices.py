"""From a request and the dumps to the choices that a plan is made of."""

from __future__ import annotations

import os

from kafka_index.errors import InputError
from kafka_index.layout.internal_topics import CONSUMER_OFFSETS_TOPIC
from kafka_index.records.decompression import shared_budget
from kafka_index.restore.cluster import new_uuid
from kafka_index.restore.dump_files import Dump
from kafka_index.restore.old_cluster import OldCluster
from kafka_index.restore.plan import RestoreChoices, found_topic_ids, topics_without_id
from kafka_index.restore.request import RestoreRequest


def read_old_cluster(request: RestoreRequest, dump: Dump) -> OldCluster:
    """Read what the dumps know of their cluster, as far as the request needs it.

    Raises
    ------
    KafkaIndexError
        Permission, disk, memory or network: another try may read it.
    """
    lacks_ids = bool(topics_without_id(dump, found_topic_ids(dump)))
    with_groups = lacks_ids or bool(request.seeds or request.renames)
    return OldCluster.read(
        dump, shared_budget(request.max_decompressed_bytes), with_groups=with_groups
    )


def choices_of(request: RestoreRequest, dump: Dump, old: OldCluster) -> RestoreChoices:
    """Return what decides the content of the output; new topic ids are made here.

    Raises
    ------
    InputError
        The request names what is not in the dumps.
    """
    unknown = set(request.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("--log-start names a partition that is not in the input", found=name)
    if request.clamp_groups and all(each.topic != CONSUMER_OFFSETS_TOPIC for each in dump.replicas):
        raise InputError(
            "--clamp-groups needs the offsets that groups committed",
            expected=CONSUMER_OFFSETS_TOPIC,
            hint="add its partitions to the input, or let --topics match it",
        )
    known = {**old.topic_ids(), **found_topic_ids(dump)}
    missing = topics_without_id(dump, known)
    made = {topic: new_uuid() for topic in missing} if request.new_topic_ids else {}
    made |= {new: new_uuid() for new in request.renames.values()}
    options = (
        request.config,
        request.cluster,
        request.clamp_groups,
        request.metadata_output and os.path.realpath(request.metadata_output),
        sorted((name, sorted(values.items())) for name, values in request.topic_configs.items()),
    )
    return RestoreChoices(
        salvage=request.salvage,
        link=request.link,
        topic_ids=made,
        known_topic_ids=known,
        log_starts=request.log_starts,
        renames=request.renames,
        until=request.until,
        policies=old.cleanup_policies(),
        settings=repr(options),
    )
