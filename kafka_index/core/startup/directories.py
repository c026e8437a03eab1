"""Startup of a broker on its data directories.

Source: Kafka's ``KafkaRaftServer.initializeLogDirs``, ``LogManager.loadLogs``,
``LogManager.loadLog`` and ``ReplicaManager.applyDelta``. These methods do not load the metadata
log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kafka_index.core.cluster.listing import add_cluster_settings
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
from kafka_index.core.log.missing_offsets import CheckpointOffsets
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.data_directory import DataDirectory, FaultEffect, reject_locked
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.identity import (
    check_identity,
    configured_node_id,
    exclude_metadata_directory,
    find_metadata_directory,
    find_misplaced_metadata,
    missing_directories_reason,
    refused_settings,
    started_directories,
    to_refusal,
)
from kafka_index.core.startup.metadata_log import bootstrap_error, predict_metadata_log
from kafka_index.core.startup.partition_loading import LoadedPartition, Loading, load_partition
from kafka_index.core.startup.partition_prediction import (
    predict_loaded,
    predict_replacement,
    predict_served,
)
from kafka_index.core.startup.prediction import (
    NotPredictedError,
    Outcome,
    PartitionPrediction,
    Refusal,
    StartPrediction,
    Verdict,
)
from kafka_index.core.startup.startup_files import parse_log_directory

# Checkpoints in the order in which a broker reads the files. It fails on the first invalid file.
_CHECKPOINTS_IN_READ_ORDER = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
_SERVED_OUTCOMES = (Outcome.LOADED, Outcome.REPLACED)
_PENDING_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def predict_start(directories: Sequence[str], conditions: StartConditions) -> StartPrediction:
    """Predict a startup; suggest a startup without the clean shutdown file if that loses less.

    Raises `InputError` if a directory cannot be read or is locked by a running broker.
    """
    prediction = predict_directories(directories, conditions)
    if prediction.verdict is Verdict.SAFE or not prediction.has_marker:
        return prediction
    alternative = predict_directories(directories, replace(conditions, ignores_clean_shutdown=True))
    if (
        _loss_key(alternative) >= _loss_key(prediction)
        or alternative.verdict is Verdict.DOES_NOT_START
    ):
        return prediction
    losses = f"{_describe_losses(alternative)} (instead of {_describe_losses(prediction)})"
    return replace(prediction, suggestion=f"start a copy without {CLEAN_SHUTDOWN}: {losses}")


def predict_directories(paths: Sequence[str], conditions: StartConditions) -> StartPrediction:
    """Predict the startup of a broker on these data directories, given in any order.

    Raises `InputError` if a directory cannot be read or is locked by a running broker.
    """
    # A broker follows all symbolic links.
    with reading_inputs(follow_links=True):
        return _Startup(paths, conditions).predict()


def _loss_key(prediction: StartPrediction) -> tuple[bool, int, int, int]:
    """Return a sort key that is larger for a worse startup."""
    partitions = prediction.partitions
    return (
        prediction.verdict is Verdict.DOES_NOT_START,
        sum(partition.outcome is Outcome.EMPTIED for partition in partitions),
        sum(partition.lost.records for partition in partitions),
        sum(partition.torn_bytes > 0 for partition in partitions),
    )


def _describe_losses(prediction: StartPrediction) -> str:
    does_not_start, emptied, records, torn_logs = _loss_key(prediction)
    if does_not_start:
        return "the broker does not start"
    losses = f"{plural(records, 'record')} lost or unreadable"
    if emptied:
        losses += f", {plural(emptied, 'partition')} emptied"
    return f"{losses}, {plural(torn_logs, 'log')} torn" if torn_logs else losses


class _Startup:
    def __init__(self, paths: Sequence[str], conditions: StartConditions) -> None:
        self._conditions = conditions
        self._config = conditions.config
        properties = conditions.properties
        paths = started_directories(paths, properties)
        self._metadata = find_metadata_directory(paths, properties, conditions.metadata_directory)
        self._paths = exclude_metadata_directory(paths, properties, self._metadata)
        for path in self._paths:
            reject_locked(path, "predict from a copy, or after the broker has stopped")
        self._node_id = configured_node_id(properties)
        self._identity = check_identity(self._paths, self._metadata, self._node_id)
        self._refusals = [*refused_settings(properties), *self._identity.refused]
        self._failed_directories: dict[str, Refusal] = {}
        self._failed_later: dict[str, Refusal] = {}
        self._unserved_reasons: list[str] = []
        self._unknown_facts = [
            f"a broker may exit because of {path}: the metadata.log.dir in its settings is not on "
            "this machine"
            for path in find_misplaced_metadata(self._paths, properties, self._metadata)
        ]
        not_given = missing_directories_reason(self._paths, properties)
        if not_given is not None:
            self._unknown_facts.append(not_given)
        self._not_checked: list[str] = []
        self._partitions: list[PartitionPrediction] = []
        self._notes: list[str] = []
        self._loaded_paths: dict[tuple[TopicPartition, DirectoryKind], str] = {}
        self._local_partitions: set[TopicPartition] = set()
        self._real_paths: dict[str, str] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._offline_directories: set[str] = set()
        self._directories_offline_once_read: set[str] = set()
        self._serving_directories: set[str] = set()
        self._has_marker = False
        self._has_unknown_retention = False
        self._malformed_settings: set[str] = set()

    def predict(self) -> StartPrediction:
        for check in (self._check_bootstrap, self._check_locks, self._check_metadata_log):
            if not self._refusals:
                check()
        if self._node_id is None:
            node_ids = (properties.node_id for properties in self._identity.by_directory.values())
            self._node_id = next((node_id for node_id in node_ids if node_id is not None), None)
        cluster = self._conditions.cluster
        if cluster is not None:
            self._config = add_cluster_settings(cluster, self._config, self._node_id)
        # A broker verifies that all directories belong together before it loads any partition.
        if not self._refusals:
            for path in self._paths:
                if path in self._identity.offline:
                    self._failed_directories[path] = self._identity.offline[path]
                else:
                    self._predict_directory(DataDirectory(path, tolerated=True))
            self._promote_future_replicas()
            self._failed_directories = {**self._failed_later, **self._failed_directories}
            self._mark_offline()
            self._add_missing_partitions()
            self._check_transactions()
            self._partitions.sort(key=lambda partition: os.path.split(partition.directory))
        self._add_notes()
        if not self._refusals and (
            len(self._failed_directories) == len(self._paths)
            or self._metadata in self._failed_directories
        ):
            self._refusals += self._failed_directories.values()
        failed = [
            refusal
            for refusal in self._failed_directories.values()
            if refusal not in self._refusals
        ]
        return StartPrediction(
            self._verdict(),
            (*self._refusals, *failed),
            tuple(self._partitions),
            tuple(self._notes),
            self._has_marker,
            tuple(self._unserved_reasons),
            tuple(self._unknown_facts),
            tuple(self._not_checked),
        )

    def _verdict(self) -> Verdict:
        if self._refusals:
            return Verdict.DOES_NOT_START
        partitions = self._partitions
        if any(partition.loses for partition in partitions):
            return Verdict.LOSES
        is_served = all(
            partition.outcome in _SERVED_OUTCOMES and not partition.unserved
            for partition in partitions
        )
        if self._failed_directories or self._unserved_reasons or not is_served:
            return Verdict.DOES_NOT_SERVE
        is_unknown = self._unknown_facts or any(partition.unknown for partition in partitions)
        return Verdict.UNKNOWN if is_unknown else Verdict.SAFE

    def _add_notes(self) -> None:
        if self._conditions.metadata_fault is not None:
            self._unknown_facts.append(self._conditions.metadata_fault)
        elif self._conditions.cluster is None:
            if not self._refusals and any(
                partition.outcome is Outcome.LOADED for partition in self._partitions
            ):
                self._not_checked.append(
                    "whether partitions are stray or missing, which requires --metadata"
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
        if self._malformed_settings:
            self._notes.append(
                "deletions by retention 30 seconds after the start are unknown, because the "
                f"following settings are not numbers: {', '.join(sorted(self._malformed_settings))}"
            )

    def _check_bootstrap(self) -> None:
        """Reject a bootstrap checkpoint that a broker cannot read."""
        is_directory_known = self._metadata is not None
        for directory in self._paths if self._metadata is None else [self._metadata]:
            path = os.path.join(directory, BOOTSTRAP_CHECKPOINT)
            if not os.path.exists(path):
                continue
            try:
                reason = bootstrap_error(path)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                self._unknown_facts.append(f"{path} cannot be read: {error.message}")
                continue
            if reason is not None and is_directory_known:
                self._refusals.append(Refusal(path, None, reason))
            elif reason is not None:
                self._unknown_facts.append(
                    f"{path}: {reason}; it is unknown whether a broker reads this file"
                )

    def _check_locks(self) -> None:
        """Reject lock files that a broker cannot open."""
        for directory in self._identity.by_directory:
            path = os.path.join(directory, BROKER_LOCK)
            lock_error = opening_error(path)
            if lock_error is not None:
                self._refusals.append(Refusal(path, None, f"the lock file is {lock_error}"))

    def _check_metadata_log(self) -> None:
        """Reject a metadata log on which no node starts; report the records that it would lose."""
        if self._metadata is None:
            return
        settings = log_settings_of(self._config, CLUSTER_METADATA_TOPIC)
        prediction = predict_metadata_log(self._metadata, settings, self._conditions.clock)
        if isinstance(prediction, Refusal):
            self._refusals.append(prediction)
        # Report no loss if `metadata_fault` is set: other controllers may still have the truncated
        # records.
        elif (
            prediction is not None
            and prediction.lost.records
            and self._conditions.metadata_fault is None
        ):
            self._partitions.append(prediction)

    def _check_checkpoints(self, directory: DataDirectory) -> list[str]:
        """Report unreadable checkpoints; return reasons why the directory serves no partition.

        Raises `InputError` if this process has no permission to read a checkpoint.
        """
        path, unserved_reasons = directory.path, []
        for name in _CHECKPOINTS_IN_READ_ORDER:
            checkpoint = directory.checkpoint(name)
            if checkpoint.fault is None:
                continue
            refusal = to_refusal(checkpoint.fault)
            fault = f"{refusal.file}: {refusal.reason}"
            match checkpoint.effect:
                case None:
                    raise checkpoint.fault
                case FaultEffect.OFFLINE:
                    self._failed_directories.setdefault(path, refusal)
                    self._offline_directories.add(path)
                case FaultEffect.OFFLINE_LATER:
                    self._failed_later[path] = refusal
                case FaultEffect.EXITS:
                    self._refusals.append(refusal)
                case FaultEffect.RESET:
                    self._notes.append(
                        f"{fault}: a broker treats all offsets in this checkpoint as 0"
                    )
                case FaultEffect.SERVES_NONE:
                    unserved_reasons.append(f"{fault}: the broker starts, but serves no partition")
                case FaultEffect.CLEANS_NONE:
                    self._unserved_reasons.append(
                        f"{fault}: the broker starts, but cleans no partition"
                    )
                case FaultEffect.CLEANER_OFFLINE:
                    self._unserved_reasons.append(
                        f"{fault}: the log cleaner fails, and the broker takes the directory "
                        "offline"
                    )
        return unserved_reasons

    def _predict_directory(self, directory: DataDirectory) -> None:
        unserved_reasons = self._check_checkpoints(directory)
        is_clean = directory.is_clean and not self._conditions.ignores_clean_shutdown
        clean_shutdown_file = directory.file(CLEAN_SHUTDOWN)
        if is_clean and directory.is_clean_shutdown_file_stuck:
            reason = (
                "the clean shutdown file is a non-empty directory, which a broker cannot delete"
            )
            self._failed_directories.setdefault(
                directory.path, Refusal(clean_shutdown_file, None, reason)
            )
            return
        if is_clean:
            self._has_marker = True
            self._notes.append(f"a broker deletes {clean_shutdown_file} before it loads partitions")
        # Load partitions in the order in which the file system lists them, like a broker. The order
        # matters: after a directory is offline, a broker exits on some of its partitions.
        for entry in scan_directory(directory.path):
            if not entry.is_directory() or entry.name in NOT_PARTITIONS:
                continue
            parsed_name = parse_log_directory(entry.name)
            if parsed_name is None:
                self._refusals.append(
                    Refusal(entry.path, None, "the directory name is not a partition name")
                )
                continue
            if parsed_name[0].topic != CLUSTER_METADATA_TOPIC:
                self._predict_partition(parsed_name, entry.path, directory, is_clean=is_clean)
        if directory.path in self._serving_directories:
            self._unserved_reasons += unserved_reasons

    def _predict_partition(
        self,
        parsed_name: tuple[TopicPartition, DirectoryKind],
        path: str,
        directory: DataDirectory,
        *,
        is_clean: bool,
    ) -> None:
        partition, kind = parsed_name
        is_used = kind in (DirectoryKind.LIVE, DirectoryKind.FUTURE)
        loading = replace(
            Loading.from_directory(directory, partition, self._config, self._conditions.clock),
            is_clean=is_clean,
            is_offline=directory.path in self._offline_directories,
            is_deleted=kind is DirectoryKind.DELETE,
        )
        predicted = PartitionPrediction(partition.topic, partition.partition, path, Outcome.REFUSED)
        same_directory = self._real_paths.setdefault(os.path.realpath(path), path)
        if same_directory != path:
            self._unknown_facts.append(
                f"{path} and {same_directory} are the same directory, which a broker loads twice"
            )
        if kind is DirectoryKind.LIVE:
            self._local_partitions.add(partition)
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
            self._add_refusal(predicted, directory, error)
            return
        if not is_used:
            is_deleted = kind is DirectoryKind.DELETE
            effect = "deletes" if is_deleted else "does not serve"
            when = " 30 seconds after the start" if is_deleted else ""
            self._notes.append(f"a broker {effect} {path}{when}")
            return
        self._partitions.append(predicted)
        if predicted.outcome is Outcome.STRAY:
            return
        same_partition = self._loaded_paths.setdefault((partition, kind), path)
        if same_partition != path:
            self._refusals.append(
                Refusal(path, None, f"{same_partition} contains the same partition")
            )
        self._serving_directories.add(directory.path)
        if any(
            segment.files is not None and segment.files.not_files for segment in loaded.segments
        ):
            self._directories_offline_once_read.add(directory.path)
        self._topic_ids[path] = topic_id

    def _add_refusal(
        self, predicted: PartitionPrediction, directory: DataDirectory, error: KafkaIndexError
    ) -> None:
        """Report the effect of a partition that fails to load."""
        cause = StartRefusedError.of(error, predicted.directory)
        refusal = to_refusal(cause)
        if isinstance(error, NotPredictedError):
            unknown = f"{cause.path}: {refusal.reason}"
            self._partitions.append(replace(predicted, outcome=Outcome.LOADED, unknown=unknown))
            return
        if isinstance(error, DirectoryFailsError):
            self._failed_directories.setdefault(directory.path, refusal)
            if isinstance(error, OfflineAtOnceError):
                self._offline_directories.add(directory.path)
        else:
            self._refusals.append(refusal)
        self._partitions.append(replace(predicted, refusal=refusal))

    def _predict_loaded(
        self,
        predicted: PartitionPrediction,
        loaded: LoadedPartition,
        loading: Loading,
        topic_id: str | None,
        directory: DataDirectory,
    ) -> PartitionPrediction:
        """Return the prediction for a loaded partition, including deletions by retention."""
        conditions, node_id = self._conditions, self._node_id
        partition = TopicPartition(predicted.topic, predicted.partition)
        stray_reason = conditions.stray_reason(partition, topic_id, node_id)
        if stray_reason is not None and loading.is_offline:
            raise StartRefusedError(
                "the partition is stray, and the data directory is already offline: a broker exits "
                "when it renames the partition directory"
            )
        policy = conditions.cleanup_policy(partition.topic, node_id)
        is_topic_known = policy is not None or conditions.has_topic(partition.topic)
        known_offsets = CheckpointOffsets.read(
            directory, partition, policy, is_topic_known=is_topic_known
        )
        losses = conditions.known_losses.get(partition, ())
        predicted = predict_loaded(predicted, loaded, loading, known_offsets, losses)
        if stray_reason is not None:
            return replace(predicted, outcome=Outcome.STRAY, notes=(*predicted.notes, stray_reason))
        retention = conditions.retention(partition.topic, node_id)
        self._has_unknown_retention |= not retention.is_known and not retention.malformed
        self._malformed_settings.update(retention.malformed)
        return predict_served(
            predicted,
            loaded,
            directory,
            retention,
            ProducerExpiration(loading.settings.producer_id_expiration_ms, conditions.clock()),
            conditions.unreachable_reason(partition.topic, topic_id),
            is_compacted=known_offsets.cleaning.is_compacted is True,
        )

    def _assigned_directory(self, topic_id: str | None, partition: int) -> str | None:
        """Return the data directory to which the metadata assigns a partition, if any."""
        directory_id = self._conditions.directory_id(topic_id, partition, self._node_id)
        for path, properties in self._identity.by_directory.items():
            if directory_id and properties.directory_id == directory_id:
                return path
        return None

    def _promote_future_replicas(self) -> None:
        """Replace current replicas by future replicas if the metadata already assigns them.

        Source: ``LogManager.recoverAbandonedFutureLogs``.
        """
        by_path = {prediction.directory: prediction for prediction in self._partitions}
        for (partition, kind), path in self._loaded_paths.items():
            future = by_path.get(path)
            if kind is not DirectoryKind.FUTURE or future is None or future.loaded is None:
                continue
            directory = os.path.dirname(path)
            topic_id = self._topic_ids.get(path)
            current_path = self._loaded_paths.get((partition, DirectoryKind.LIVE), "")
            is_same_directory = os.path.dirname(current_path) == directory
            if self._conditions.cluster is not None:
                if self._assigned_directory(topic_id, partition.partition) != directory:
                    continue
                current = (
                    by_path.get(current_path)
                    if self._topic_ids.get(current_path) == topic_id
                    else None
                )
                paths = [
                    directory,
                    *([os.path.dirname(current_path)] if current is not None else ()),
                ]
                offline = next((path for path in paths if path in self._failed_directories), None)
                if offline is not None:
                    reason = (
                        "a broker exits when it renames the future replica, because "
                        f"{offline} is offline"
                    )
                    self._refusals.append(Refusal(path, None, reason))
                    continue
                if not is_same_directory:
                    self._local_partitions.add(partition)
                    if current is not None:
                        index = self._partitions.index(current)
                        self._partitions[index] = predict_replacement(current, future)
            if is_same_directory:
                self._refusals.append(
                    Refusal(path, None, f"{current_path} contains the same partition")
                )

    def _add_missing_partitions(self) -> None:
        """Report missing partitions that the metadata assigns to these data directories."""
        cluster = self._conditions.cluster
        for topic_id, topic in ({} if cluster is None else cluster.topics).items():
            for partition_number in topic.partitions:
                partition = TopicPartition(topic.name, partition_number)
                directory = self._assigned_directory(topic_id, partition_number)
                is_missing = (
                    partition not in self._local_partitions
                    and directory not in self._failed_directories
                )
                if directory is not None and directory in self._paths and is_missing:
                    path = os.path.join(directory, partition.directory_name)
                    note = (
                        "the directory is missing: a broker creates an empty log without a warning"
                    )
                    self._partitions.append(
                        PartitionPrediction(
                            topic.name, partition_number, path, Outcome.EMPTIED, notes=(note,)
                        )
                    )

    def _mark_offline(self) -> None:
        """Mark partitions in offline data directories as not served.

        A broker halts when its last data directory goes offline.
        """
        for index, partition in enumerate(self._partitions):
            if (
                partition.outcome is Outcome.LOADED
                and os.path.dirname(partition.directory) in self._failed_directories
            ):
                unserved = partition.unserved or "the data directory is offline"
                self._partitions[index] = replace(partition, unserved=unserved)
        failing = self._directories_offline_once_read - self._failed_directories.keys()
        is_last = self._failed_directories.keys() | failing >= set(self._paths)
        if failing and (is_last or self._metadata in failing):
            self._unserved_reasons.append(
                f"the broker halts when a read takes {', '.join(sorted(failing))} offline"
            )

    def _check_transactions(self) -> None:
        """Mark partitions with an open transaction that no coordinator ends as not served."""
        budget = shared_budget(self._config.max_decompressed_bytes)
        cluster = self._conditions.cluster
        transactions = OpenTransactions(self._partitions, cluster, self._node_id, budget)
        self._partitions, unchecked_count = transactions.check()
        if unchecked_count:
            self._not_checked.append(
                f"open transactions of {plural(unchecked_count, 'partition')} whose coordinators "
                "are on other brokers"
            )


@dataclass(frozen=True)
class OpenTransactions:
    """Checks whether coordinators on a broker will end the transactions open in its partitions.

    `partitions` come from all data directories. `node_id` and `cluster` are None if unknown.
    """

    partitions: Sequence[PartitionPrediction]
    cluster: ClusterImage | None
    node_id: int | None
    budget: DecompressionBudget

    def check(self) -> tuple[list[PartitionPrediction], int]:
        """Return the partitions, and the number of partitions with unknown coordinators."""
        checked, unchecked_count = [], 0
        for partition in self.partitions:
            if partition.outcome is Outcome.LOADED and partition.loaded is not None:
                open_rows = partition.loaded.producers["current_txn_first_offset"] >= 0
                open_producers = partition.loaded.producers[open_rows]
                reasons = {
                    int(row["current_txn_first_offset"]): self._unended_reason(
                        partition, row["producer_id"]
                    )
                    for row in open_producers
                }
                unchecked_count += None in reasons.values()
                checked.append(self._mark_open_transaction(partition, reasons))
            else:
                checked.append(partition)
        return checked, unchecked_count

    def _unended_reason(self, prediction: PartitionPrediction, producer_id: int) -> str | None:
        """Return why no coordinator ends a transaction; empty if any does, None if unknown."""
        partition = prediction.topic, prediction.partition
        transaction = self._transactions.get(int(producer_id))
        if transaction is None:
            return "no coordinator has the producer ID" if self._has_all_coordinators else None
        if transaction.state in _PENDING_STATES and partition in transaction.partitions:
            return ""
        return f"transactional ID {transaction.transactional_id} has the state {transaction.state}"

    def _mark_open_transaction(
        self, prediction: PartitionPrediction, reasons: Mapping[int, str | None]
    ) -> PartitionPrediction:
        offset = min((offset for offset, reason in reasons.items() if reason), default=None)
        if offset is None:
            return prediction
        effect = (
            f"read_committed consumers get no records from offset {offset} on, because no "
            f"coordinator ends the transaction at this offset ({reasons[offset]})"
        )
        if self._is_sole_replica(prediction):
            return replace(
                prediction, unserved="; ".join(filter(None, (prediction.unserved, effect)))
            )
        effect += ", unless another replica has the transaction marker"
        return replace(prediction, unknown="; ".join(filter(None, (prediction.unknown, effect))))

    def _is_sole_replica(self, prediction: PartitionPrediction) -> bool:
        topic = None if self.cluster is None else self.cluster.find_topic(prediction.topic)
        partition = None if topic is None else topic.partitions.get(prediction.partition)
        return partition is not None and partition.replicas == (self.node_id,)

    @cached_property
    def _transaction_state_directories(self) -> dict[TopicPartition, str]:
        return {
            TopicPartition(partition.topic, partition.partition): partition.directory
            for partition in self.partitions
            if partition.topic == TRANSACTION_STATE_TOPIC and partition.outcome is Outcome.LOADED
        }

    @cached_property
    def _read_transactions(self) -> tuple[Mapping[int, Transaction], bool]:
        """Read transactions by producer ID, and whether all records could be read."""
        if not self._transaction_state_directories:
            return {}, True
        metadata = read_metadata(
            list(self._transaction_state_directories.values()),
            budget=self.budget,
            topics=(TRANSACTION_STATE_TOPIC,),
        )
        raise_retriable(metadata.faults.first)
        transactions = {}
        for transaction in metadata.transactions or ():
            for producer_id in (transaction.previous_producer_id, transaction.producer_id):
                if producer_id is not None:
                    transactions[producer_id] = transaction
        return transactions, not metadata.faults.total

    @property
    def _transactions(self) -> Mapping[int, Transaction]:
        return self._read_transactions[0]

    @cached_property
    def _has_all_coordinators(self) -> bool:
        """Whether this broker hosts all partitions of ``__transaction_state``, all readable."""
        if self.cluster is None or not self._read_transactions[1]:
            return False
        topic = self.cluster.find_topic(TRANSACTION_STATE_TOPIC)
        partition_numbers: Iterable[int] = () if topic is None else topic.partitions
        return all(
            TopicPartition(TRANSACTION_STATE_TOPIC, partition_number)
            in self._transaction_state_directories
            for partition_number in partition_numbers
        )
