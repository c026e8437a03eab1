"""Startup of a broker on its data directories.

Source: Kafka's ``KafkaRaftServer.initializeLogDirs``, ``LogManager.loadLogs``,
``LogManager.loadLog`` and ``ReplicaManager.applyDelta``. These do not load the metadata log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kafka_index.core.cluster.listing import settings_of
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.topic_states import Transaction
from kafka_index.core.errors import (
    DirectoryFailsError,
    KafkaIndexError,
    OfflineAtOnceError,
    StartRefusedError,
    is_retriable,
    plural,
    raise_retriable,
)
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    LOG_START_CHECKPOINT,
    NOT_PARTITIONS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TRANSACTION_STATE_TOPIC,
    DirectoryKind,
    TopicPartition,
)
from kafka_index.core.fs.inputs import reading_inputs
from kafka_index.core.fs.registry import opening_error, scan_directory
from kafka_index.core.log.append.settings import log_settings_of
from kafka_index.core.log.missing_offsets import KnownOffsets
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.data_directory import DataDirectory, FaultEffect, reject_locked
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.found_files import parse_log_directory
from kafka_index.core.startup.identity import (
    check_identity,
    configured_node,
    metadata_directory_of,
    misplaced_metadata,
    missing_directories_reason,
    refusal_of,
    refused_settings,
    started_directories,
    without_metadata_directory,
)
from kafka_index.core.startup.metadata_log import bootstrap_error, predict_metadata_log
from kafka_index.core.startup.partition_loading import LoadedPartition, Loading, load_partition
from kafka_index.core.startup.partition_prediction import (
    predict_loaded,
    predict_served,
    replaced_by,
)
from kafka_index.core.startup.prediction import (
    NotPredictedError,
    Outcome,
    PartitionPrediction,
    Refusal,
    StartPrediction,
    Verdict,
)

# In the order in which a broker reads them; it fails on the first invalid checkpoint.
_IN_ORDER = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
_SERVED = (Outcome.LOADED, Outcome.REPLACED)
_PENDING = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def predict_start(directories: Sequence[str], conditions: StartConditions) -> StartPrediction:
    """Predict a startup; suggest a startup without the clean shutdown file if that loses less.

    Raises `InputError` if a directory cannot be read or is locked by a running broker.
    """
    prediction = predict_directories(directories, conditions)
    if prediction.verdict is Verdict.SAFE or not prediction.has_marker:
        return prediction
    without = predict_directories(directories, replace(conditions, without_marker=True))
    if _loss_key(without) >= _loss_key(prediction) or without.verdict is Verdict.DOES_NOT_START:
        return prediction
    losses = f"{_describe_losses(without)} (now {_describe_losses(prediction)})"
    return replace(prediction, suggestion=f"on a copy, start without {CLEAN_SHUTDOWN}: {losses}")


def predict_directories(paths: Sequence[str], conditions: StartConditions) -> StartPrediction:
    """Predict the startup of a broker on these data directories, given in any order.

    Raises `InputError` if a directory cannot be read or is locked by a running broker.
    """
    # A broker follows all symbolic links.
    with reading_inputs(follow_links=True):
        return _Start(paths, conditions).predict()


def _loss_key(prediction: StartPrediction) -> tuple[bool, int, int, int]:
    """Return a sort key that is larger for a worse startup."""
    partitions = prediction.partitions
    return (
        prediction.verdict is Verdict.DOES_NOT_START,
        sum(one.outcome is Outcome.EMPTIED for one in partitions),
        sum(one.lost.records for one in partitions),
        sum(one.torn_bytes > 0 for one in partitions),
    )


def _describe_losses(prediction: StartPrediction) -> str:
    stops, emptied, records, torn = _loss_key(prediction)
    if stops:
        return "the broker does not start"
    text = f"{records} records are lost or hidden"
    if emptied:
        text += f" and {emptied} partitions emptied"
    return f"{text} and {torn} logs stay torn" if torn else text


class _Start:
    def __init__(self, paths: Sequence[str], conditions: StartConditions) -> None:
        self._conditions = conditions
        self._config = conditions.config
        properties = conditions.properties
        paths = started_directories(paths, properties)
        self._metadata = metadata_directory_of(paths, properties, conditions.metadata_directory)
        self._paths = without_metadata_directory(paths, properties, self._metadata)
        for path in self._paths:
            reject_locked(path, "predict from a copy, or after the broker has stopped")
        self._node_id = configured_node(properties)
        self._identity = check_identity(self._paths, self._metadata, self._node_id)
        self._refused = [*refused_settings(properties), *self._identity.refused]
        self._failed: dict[str, Refusal] = {}
        self._failed_later: dict[str, Refusal] = {}
        self._unserved: list[str] = []
        self._unknown = [
            f"whether a broker exits over {path}, as the metadata.log.dir of its settings is not "
            "here"
            for path in misplaced_metadata(self._paths, properties, self._metadata)
        ]
        not_given = missing_directories_reason(self._paths, properties)
        if not_given is not None:
            self._unknown.append(not_given)
        self._not_checked: list[str] = []
        self._partitions: list[PartitionPrediction] = []
        self._notes: list[str] = []
        self._seen: dict[tuple[TopicPartition, DirectoryKind], str] = {}
        self._here: set[TopicPartition] = set()
        self._real_paths: dict[str, str] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._offline: set[str] = set()
        self._offline_once_read: set[str] = set()
        self._served_from: set[str] = set()
        self._has_marker = False
        self._has_unknown_retention = False
        self._malformed: set[str] = set()

    def predict(self) -> StartPrediction:
        for check in (self._check_bootstrap, self._check_locks, self._check_metadata_log):
            if not self._refused:
                check()
        if self._node_id is None:
            known = (one.node_id for one in self._identity.by_directory.values())
            self._node_id = next((one for one in known if one is not None), None)
        cluster = self._conditions.cluster
        if cluster is not None:
            self._config = settings_of(cluster, self._config, self._node_id)
        # A broker verifies that all directories belong together before it loads any.
        if not self._refused:
            for path in self._paths:
                if path in self._identity.offline:
                    self._failed[path] = self._identity.offline[path]
                else:
                    self._directory(DataDirectory(path, tolerated=True))
            self._replace_by_futures()
            self._failed = {**self._failed_later, **self._failed}
            self._mark_offline()
            self._add_missing_partitions()
            self._check_transactions()
            self._partitions.sort(key=lambda one: (os.path.dirname(one.directory), one.directory))
        self._add_notes()
        if not self._refused and (
            len(self._failed) == len(self._paths) or self._metadata in self._failed
        ):
            self._refused += self._failed.values()
        failed = [one for one in self._failed.values() if one not in self._refused]
        return StartPrediction(
            self._verdict(),
            (*self._refused, *failed),
            tuple(self._partitions),
            tuple(self._notes),
            self._has_marker,
            tuple(self._unserved),
            tuple(self._unknown),
            tuple(self._not_checked),
        )

    def _verdict(self) -> Verdict:
        if self._refused:
            return Verdict.DOES_NOT_START
        parts = self._partitions
        if any(one.loses for one in parts):
            return Verdict.LOSES
        is_served = all(one.outcome in _SERVED and not one.unserved for one in parts)
        if self._failed or self._unserved or not is_served:
            return Verdict.DOES_NOT_SERVE
        is_unknown = self._unknown or any(one.unknown for one in parts)
        return Verdict.UNKNOWN if is_unknown else Verdict.SAFE

    def _add_notes(self) -> None:
        if self._conditions.metadata_fault is not None:
            self._unknown.append(self._conditions.metadata_fault)
        elif self._conditions.cluster is None:
            if not self._refused and any(one.outcome is Outcome.LOADED for one in self._partitions):
                self._not_checked.append(
                    "which partitions are stray or missing, by their topics' ids: no --metadata"
                )
            self._notes.append(
                "without --metadata, stray partitions, topic settings and deletions by retention "
                "30 seconds after the start are unknown"
            )
        elif self._has_unknown_retention:
            self._notes.append(
                "without --config, deletions by retention 30 seconds after the start are unknown "
                "for topics without their own cleanup policy and retention limits"
            )
        if self._malformed:
            self._notes.append(
                "deletions by retention 30 seconds after the start are unknown, because these "
                f"settings are not numbers: {', '.join(sorted(self._malformed))}"
            )

    def _check_bootstrap(self) -> None:
        """Reject a bootstrap checkpoint that a broker cannot read."""
        is_known = self._metadata is not None
        for directory in self._paths if self._metadata is None else [self._metadata]:
            path = os.path.join(directory, BOOTSTRAP_CHECKPOINT)
            if not os.path.exists(path):
                continue
            try:
                reason = bootstrap_error(path)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                self._unknown.append(f"{path} cannot be read: {error.message}")
                continue
            if reason is not None and is_known:
                self._refused.append(Refusal(path, None, reason))
            elif reason is not None:
                self._unknown.append(
                    f"{path}, which a broker reads with its metadata log: {reason}"
                )

    def _check_locks(self) -> None:
        """Reject lock files that a broker cannot open."""
        for directory in self._identity.by_directory:
            path = os.path.join(directory, BROKER_LOCK)
            kind = opening_error(path)
            if kind is not None:
                self._refused.append(Refusal(path, None, f"the lock is {kind}"))

    def _check_metadata_log(self) -> None:
        """Reject a metadata log on which no node starts; report the records that it would lose."""
        if self._metadata is None:
            return
        settings = log_settings_of(self._config, CLUSTER_METADATA_TOPIC)
        found = predict_metadata_log(self._metadata, settings, self._conditions.clock)
        if isinstance(found, Refusal):
            self._refused.append(found)
        # Other controllers may still have the records truncated here, so the metadata is unknown.
        elif found is not None and found.lost.records and self._conditions.metadata_fault is None:
            self._partitions.append(found)

    def _check_checkpoints(self, directory: DataDirectory) -> list[str]:
        """Report unreadable checkpoints; return why the directory's partitions are not served.

        Raises `InputError` if this process has no permission to read a checkpoint.
        """
        path, hidden = directory.path, []
        for name in _IN_ORDER:
            checkpoint = directory.checkpoint(name)
            if checkpoint.fault is None:
                continue
            why = refusal_of(checkpoint.fault)
            text = f"{why.file}: {why.reason}"
            match checkpoint.effect:
                case None:
                    raise checkpoint.fault
                case FaultEffect.OFFLINE:
                    self._failed.setdefault(path, why)
                    self._offline.add(path)
                case FaultEffect.OFFLINE_LATER:
                    self._failed_later[path] = why
                case FaultEffect.EXITS:
                    self._refused.append(why)
                case FaultEffect.RESET:
                    self._notes.append(f"{text}: all of it counts as 0")
                case FaultEffect.SERVES_NONE:
                    hidden.append(f"{text}: the broker starts, and serves no partition")
                case FaultEffect.CLEANS_NONE:
                    self._unserved.append(f"{text}: the broker starts, and cleans none")
                case FaultEffect.CLEANER_OFFLINE:
                    self._unserved.append(
                        f"{text}: the cleaner fails on it, and the broker takes the directory "
                        "offline"
                    )
        return hidden

    def _directory(self, directory: DataDirectory) -> None:
        hidden = self._check_checkpoints(directory)
        is_clean = directory.is_clean and not self._conditions.without_marker
        marker = directory.file(CLEAN_SHUTDOWN)
        if is_clean and directory.is_clean_shutdown_file_stuck:
            reason = (
                "the clean shutdown file cannot be deleted: it is a directory that is not empty"
            )
            self._failed.setdefault(directory.path, Refusal(marker, None, reason))
            return
        if is_clean:
            self._has_marker = True
            self._notes.append(f"{marker} is deleted before anything is loaded")
        # In the order of the file system, as a broker does. Once a directory is offline, loading
        # some partitions from it is fatal.
        for entry in scan_directory(directory.path):
            if not entry.is_directory() or entry.name in NOT_PARTITIONS:
                continue
            split = parse_log_directory(entry.name)
            if split is None:
                self._refused.append(
                    Refusal(entry.path, None, "not named like a partition directory")
                )
                continue
            if split[0].topic != CLUSTER_METADATA_TOPIC:
                self._partition(split, entry.path, directory, is_clean=is_clean)
        if directory.path in self._served_from:
            self._unserved += hidden

    def _partition(
        self,
        named: tuple[TopicPartition, DirectoryKind],
        path: str,
        directory: DataDirectory,
        *,
        is_clean: bool,
    ) -> None:
        partition, kind = named
        is_used = kind in (DirectoryKind.LIVE, DirectoryKind.FUTURE)
        loading = replace(
            Loading.of(directory, partition, self._config, self._conditions.clock),
            is_clean=is_clean,
            is_offline=directory.path in self._offline,
            is_deleted=kind is DirectoryKind.DELETE,
        )
        predicted = PartitionPrediction(partition.topic, partition.partition, path, Outcome.REFUSED)
        other = self._real_paths.setdefault(os.path.realpath(path), path)
        if other != path:
            self._unknown.append(f"{path} is the directory of {other}: a broker loads it twice")
        if kind is DirectoryKind.LIVE:
            self._here.add(partition)
        try:
            with load_partition(partition, path, loading) as loaded:
                topic_id = read_topic_id(path)
                if is_used:
                    predicted = self._predict_loaded(
                        predicted, loaded, loading, topic_id, directory
                    )
        except KafkaIndexError as error:
            # Permission errors and concurrent changes do not show how a broker would behave.
            if is_retriable(error):
                raise
            self._refuse(predicted, directory, error)
            return
        if not is_used:
            is_deleted = kind is DirectoryKind.DELETE
            does = "deleted 30 seconds after the start" if is_deleted else "kept, and not served"
            self._notes.append(f"{path} is {does}")
            return
        self._partitions.append(predicted)
        if predicted.outcome is Outcome.STRAY:
            return
        before = self._seen.setdefault((partition, kind), path)
        if before != path:
            self._refused.append(Refusal(path, None, f"{before} has the same partition"))
        self._served_from.add(directory.path)
        if any(one.found is not None and one.found.not_files for one in loaded.segments):
            self._offline_once_read.add(directory.path)
        self._topic_ids[path] = topic_id

    def _refuse(
        self, predicted: PartitionPrediction, directory: DataDirectory, error: KafkaIndexError
    ) -> None:
        """Report the effect of a partition that fails to load."""
        cause = StartRefusedError.of(error, predicted.directory)
        refusal = refusal_of(cause)
        if isinstance(error, NotPredictedError):
            unknown = f"{cause.path}: {refusal.reason}"
            self._partitions.append(replace(predicted, outcome=Outcome.LOADED, unknown=unknown))
            return
        if isinstance(error, DirectoryFailsError):
            self._failed.setdefault(directory.path, refusal)
            if isinstance(error, OfflineAtOnceError):
                self._offline.add(directory.path)
        else:
            self._refused.append(refusal)
        self._partitions.append(replace(predicted, refusal=refusal))

    def _predict_loaded(
        self,
        predicted: PartitionPrediction,
        loaded: LoadedPartition,
        loading: Loading,
        topic_id: str | None,
        directory: DataDirectory,
    ) -> PartitionPrediction:
        """Return the prediction for a loaded partition, including later deletions."""
        conditions, node_id = self._conditions, self._node_id
        partition = TopicPartition(predicted.topic, predicted.partition)
        why = conditions.why_stray(partition, topic_id, node_id)
        if why is not None and loading.is_offline:
            raise StartRefusedError(
                "stray: a broker that renames it in a data directory which is offline by then exits"
            )
        policy = conditions.cleanup_policy(partition.topic, node_id)
        is_known = policy is not None or conditions.knows(partition.topic)
        known = KnownOffsets.of(directory, partition, policy, is_topic_known=is_known)
        losses = conditions.known_losses.get(partition, ())
        predicted = predict_loaded(predicted, loaded, loading, known, losses)
        if why is not None:
            return replace(predicted, outcome=Outcome.STRAY, notes=(*predicted.notes, why))
        retention = conditions.retention(partition.topic, node_id)
        self._has_unknown_retention |= not retention.is_known and not retention.malformed
        self._malformed.update(retention.malformed)
        return predict_served(
            predicted,
            loaded,
            directory,
            retention,
            ProducerExpiration(loading.settings.producer_id_expiration_ms, conditions.clock()),
            conditions.unreachable_reason(partition.topic, topic_id),
            is_compacted=known.cleaning.is_compacted is True,
        )

    def _placed_in(self, topic_id: str | None, partition: int) -> str | None:
        """Return the data directory to which the metadata assigns a partition, if any."""
        placed = self._conditions.directory_id(topic_id, partition, self._node_id)
        known = self._identity.by_directory.items()
        return next((path for path, one in known if placed and one.directory_id == placed), None)

    def _replace_by_futures(self) -> None:
        """Replace current replicas by future replicas if the metadata already assigns them.

        Source: ``LogManager.recoverAbandonedFutureLogs``.
        """
        by_path = {one.directory: one for one in self._partitions}
        for (partition, kind), path in self._seen.items():
            future = by_path.get(path)
            if kind is not DirectoryKind.FUTURE or future is None or future.loaded is None:
                continue
            directory = os.path.dirname(path)
            topic_id = self._topic_ids.get(path)
            at = self._seen.get((partition, DirectoryKind.LIVE), "")
            is_same_directory = os.path.dirname(at) == directory
            if self._conditions.cluster is not None:
                if self._placed_in(topic_id, partition.partition) != directory:
                    continue
                current = by_path.get(at) if self._topic_ids.get(at) == topic_id else None
                paths = [directory, *([os.path.dirname(at)] if current is not None else ())]
                offline = next((one for one in paths if one in self._failed), None)
                if offline is not None:
                    reason = f"a broker that renames it exits, as {offline} is offline"
                    self._refused.append(Refusal(path, None, reason))
                    continue
                if not is_same_directory:
                    self._here.add(partition)
                    if current is not None:
                        row = self._partitions.index(current)
                        self._partitions[row] = replaced_by(current, future)
            if is_same_directory:
                self._refused.append(Refusal(path, None, f"{at} has the same partition"))

    def _add_missing_partitions(self) -> None:
        """Report partitions that the metadata assigns to this broker and that do not exist here."""
        cluster = self._conditions.cluster
        for topic_id, topic in ({} if cluster is None else cluster.topics).items():
            for number in topic.partitions:
                partition = TopicPartition(topic.name, number)
                directory = self._placed_in(topic_id, number)
                is_missing = partition not in self._here and directory not in self._failed
                if directory is not None and directory in self._paths and is_missing:
                    path = os.path.join(directory, partition.directory_name)
                    note = "its directory is missing: an empty log is created, without a warning"
                    self._partitions.append(
                        PartitionPrediction(
                            topic.name, number, path, Outcome.EMPTIED, notes=(note,)
                        )
                    )

    def _mark_offline(self) -> None:
        """Mark partitions in offline data directories as not served.

        A broker halts when its last data directory goes offline.
        """
        for row, one in enumerate(self._partitions):
            if one.outcome is Outcome.LOADED and os.path.dirname(one.directory) in self._failed:
                unserved = one.unserved or "its data directory is offline"
                self._partitions[row] = replace(one, unserved=unserved)
        failing = self._offline_once_read - self._failed.keys()
        is_last = self._failed.keys() | failing >= set(self._paths)
        if failing and (is_last or self._metadata in failing):
            self._unserved.append(
                f"the broker halts once a reader has taken {', '.join(sorted(failing))} offline"
            )

    def _check_transactions(self) -> None:
        """Mark partitions as not served if one of their transactions never ends."""
        budget = shared_budget(self._config.max_decompressed_bytes)
        cluster = self._conditions.cluster
        found = OpenTransactions(self._partitions, cluster, self._node_id, budget)
        self._partitions, elsewhere = found.check()
        if elsewhere:
            self._not_checked.append(
                f"open transactions of {plural(elsewhere, 'partition')} whose coordinators are on "
                "other brokers"
            )


@dataclass(frozen=True)
class OpenTransactions:
    """The transaction coordinators of a broker, and the partitions that it hosts.

    `partitions` come from all data directories. `node_id` and `cluster` are None if unknown.
    """

    partitions: Sequence[PartitionPrediction]
    cluster: ClusterImage | None
    node_id: int | None
    budget: DecompressionBudget

    def check(self) -> tuple[list[PartitionPrediction], int]:
        """Return the partitions, and how many of them may have coordinators on other brokers."""
        checked, elsewhere = [], 0
        for one in self.partitions:
            if one.outcome is Outcome.LOADED and one.loaded is not None:
                open_rows = one.loaded.producers["current_txn_first_offset"] >= 0
                found = one.loaded.producers[open_rows]
                reasons = {
                    int(row["current_txn_first_offset"]): self._unended_reason(
                        one, row["producer_id"]
                    )
                    for row in found
                }
                elsewhere += None in reasons.values()
                checked.append(self._with_reasons(one, reasons))
            else:
                checked.append(one)
        return checked, elsewhere

    def _unended_reason(self, one: PartitionPrediction, producer_id: int) -> str | None:
        """Return why no coordinator will end a transaction: empty if one will, None if unknown."""
        partition = one.topic, one.partition
        transaction = self._transactions.get(int(producer_id))
        if transaction is None:
            return "no coordinator has its producer" if self._has_all_coordinators else None
        if transaction.state in _PENDING and partition in transaction.partitions:
            return ""
        return f"the state of {transaction.transactional_id} is {transaction.state}"

    def _with_reasons(
        self, one: PartitionPrediction, reasons: Mapping[int, str | None]
    ) -> PartitionPrediction:
        offset = min((each for each, reason in reasons.items() if reason), default=None)
        if offset is None:
            return one
        text = (
            f"read_committed consumers get nothing from offset {offset} on: the transaction that "
            f"begins there is open, and no coordinator ends it ({reasons[offset]})"
        )
        if self._is_only_here(one):
            return replace(one, unserved="; ".join(filter(None, (one.unserved, text))))
        text += ", unless another replica has its transaction marker"
        return replace(one, unknown="; ".join(filter(None, (one.unknown, text))))

    def _is_only_here(self, one: PartitionPrediction) -> bool:
        topic = None if self.cluster is None else self.cluster.topic_named(one.topic)
        found = None if topic is None else topic.partitions.get(one.partition)
        return found is not None and found.replicas == (self.node_id,)

    @cached_property
    def _states(self) -> dict[TopicPartition, str]:
        return {
            TopicPartition(one.topic, one.partition): one.directory
            for one in self.partitions
            if one.topic == TRANSACTION_STATE_TOPIC and one.outcome is Outcome.LOADED
        }

    @cached_property
    def _read(self) -> tuple[Mapping[int, Transaction], bool]:
        """Read transactions by producer ID; the flag tells whether all records could be read."""
        if not self._states:
            return {}, True
        read = read_metadata(
            list(self._states.values()), budget=self.budget, topics=(TRANSACTION_STATE_TOPIC,)
        )
        raise_retriable(read.faults.first)
        by_id = {}
        for one in read.transactions or ():
            for producer_id in (one.previous_producer_id, one.producer_id):
                if producer_id is not None:
                    by_id[producer_id] = one
        return by_id, not read.faults.total

    @property
    def _transactions(self) -> Mapping[int, Transaction]:
        return self._read[0]

    @cached_property
    def _has_all_coordinators(self) -> bool:
        """Whether this broker hosts all partitions of ``__transaction_state``."""
        if self.cluster is None or not self._read[1]:
            return False
        topic = self.cluster.topic_named(TRANSACTION_STATE_TOPIC)
        numbers: Iterable[int] = () if topic is None else topic.partitions
        return all(
            TopicPartition(TRANSACTION_STATE_TOPIC, number) in self._states for number in numbers
        )
