"""Groups, transactions and remote segments from the records of Kafka's own topics."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.cluster.metadata.directory import ClusterMetadata, read_metadata
from kafka_index.core.cluster.metadata.tables import METADATA_TABLES
from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.message_schemas import Struct, Value
from kafka_index.core.format.messages import CONSUMER_PROTOCOL, GROUP_RECORDS, TRANSACTION_RECORDS
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.metadata import (
    Pair,
    coordinator_record,
    end_of_transaction,
    log_batch,
    remote_record,
    uuid_of,
    write_log,
)


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    return tmp_path / "__consumer_offsets-3"


def read(path: Path) -> ClusterMetadata:
    return read_metadata([str(path)], budget=DecompressionBudget(2**20))


def commit(offset: int | None, *, partition: int = 0, version: int = 4) -> Pair:
    value: dict[str, Value] | None = None
    if offset is not None:
        value = {"offset": offset, "leaderEpoch": 2, "metadata": "m", "commitTimestamp": 99}
        value |= {"topicId": uuid_of(5)}
    key: dict[str, Value] = {"group": "g", "topic": "orders", "partition": partition}
    return coordinator_record(GROUP_RECORDS, "OffsetCommit", key, value, version)


def committed(path: Path) -> dict[int, int]:
    result = read(path)
    assert not result.faults.first
    return {one.partition: one.offset for one in result.offsets or []}


def test_last_commit_of_a_partition_is_its_committed_offset(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5), commit(8, partition=1)), log_batch(2, commit(6)))

    assert committed(offsets) == {0: 6, 1: 8}


def test_tombstone_deletes_a_commit(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5), commit(None)))

    assert committed(offsets) == {}


def test_commit_in_a_transaction_is_used_after_its_commit_marker(offsets: Path) -> None:
    write_log(
        offsets,
        log_batch(0, commit(5), commit(5, partition=1), commit(5, partition=2)),
        log_batch(3, commit(7), producer_id=40),
        log_batch(4, commit(7, partition=1), producer_id=41),
        log_batch(5, commit(7, partition=2), producer_id=42),
        end_of_transaction(6, 40, commit=True),
        end_of_transaction(7, 41, commit=False),
    )

    assert committed(offsets) == {0: 7, 1: 5, 2: 5}


def test_later_offset_commit_is_kept_when_an_earlier_transaction_commits(offsets: Path) -> None:
    write_log(
        offsets,
        log_batch(0, commit(7), producer_id=40),
        log_batch(1, commit(9)),
        end_of_transaction(2, 40, commit=True),
    )

    assert committed(offsets) == {0: 9}


def test_tombstone_deletes_pending_transactional_commits(offsets: Path) -> None:
    write_log(
        offsets,
        log_batch(0, commit(7), producer_id=40),
        log_batch(1, commit(None)),
        end_of_transaction(2, 40, commit=True),
    )

    assert committed(offsets) == {}


def test_commit_of_an_old_version_has_nulls_for_later_fields(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5, version=1)))

    (offset,) = read(offsets).offsets or []

    assert (offset.offset, offset.leader_epoch, offset.topic_id) == (5, None, None)


def test_commit_has_its_topic_id_and_leader_epoch(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5)))

    (offset,) = read(offsets).offsets or []

    assert (offset.leader_epoch, offset.topic_id) == (2, uuid_of(5))


def test_legacy_commit_is_replaced_by_a_current_commit(offsets: Path) -> None:
    key: dict[str, Value] = {"group": "g", "topic": "orders", "partition": 0}
    value: dict[str, Value] = {"offset": 3, "metadata": "", "commitTimestamp": 1}
    legacy = coordinator_record(GROUP_RECORDS, "LegacyOffsetCommit", key, value)
    write_log(offsets, log_batch(0, legacy, commit(4)))

    assert committed(offsets) == {0: 4}


def test_members_of_a_classic_group_have_their_assignment(offsets: Path) -> None:
    subscription, assignment = sorted(CONSUMER_PROTOCOL, key=lambda s: s.name, reverse=True)
    topics = subscription.encode({"topics": ["orders"]}, 1)
    partitions = assignment.encode(
        {"assignedPartitions": [Struct(topic="orders", partitions=[0, 2])]}, 1
    )
    member = Struct(
        memberId="m-1",
        clientId="c",
        clientHost="/127.0.0.1",
        subscription=b"\0\1" + topics,
        assignment=b"\0\1" + partitions,
    )
    value: dict[str, Value] = {"protocolType": "consumer", "generation": 4, "protocol": "range"}
    record = coordinator_record(
        GROUP_RECORDS,
        "GroupMetadata",
        {"group": "g"},
        {**value, "leader": "m-1", "members": [member]},
    )
    write_log(offsets, log_batch(0, record))

    (group,) = read(offsets).groups or []

    assert (group.kind, group.epoch, group.protocol) == ("classic", 4, "range")
    assert group.members["m-1"].topics == ("orders",)
    assert group.members["m-1"].assignment == [("orders", 0), ("orders", 2)]


@pytest.mark.parametrize("kind", ["Consumer", "Share", "Streams"])
def test_groups_of_the_newer_protocols_have_their_epochs(offsets: Path, kind: str) -> None:
    key: dict[str, Value] = {"groupId": "g"}
    write_log(
        offsets,
        log_batch(
            0,
            coordinator_record(
                GROUP_RECORDS, f"{kind}GroupTargetAssignmentMetadata", key, {"assignmentEpoch": 6}
            ),
            coordinator_record(GROUP_RECORDS, f"{kind}GroupMetadata", key, {"epoch": 7}),
        ),
    )

    (group,) = read(offsets).groups or []

    assert (group.kind, group.epoch, group.assignment_epoch) == (kind.lower(), 7, 6)


def test_unknown_record_type_is_counted_by_its_number(offsets: Path) -> None:
    write_log(offsets, log_batch(0, (b"\0\x63rest", b"\0\0"), commit(5)))

    result = read(offsets)

    unknown = [name.name for name in result.counts["__consumer_offsets"] if not name.is_known]
    assert unknown == ["record type 99"]
    assert len(result.offsets or []) == 1


def of_later_version(record: Pair) -> Pair:
    """Return a record of a coordinator with a value of an unknown version."""
    key, value = record
    assert value is not None
    return key, b"\0\x63" + value[2:]


def test_commit_of_later_version_is_fault_and_keeps_earlier_commits(offsets: Path) -> None:
    write_log(
        offsets,
        log_batch(0, commit(5), of_later_version(commit(6)), commit(7, partition=1)),
        log_batch(3, of_later_version(commit(8, partition=1)), producer_id=40),
        end_of_transaction(4, 40, commit=True),
    )

    actual = read(offsets)

    assert [(one.partition, one.offset) for one in actual.offsets or []] == [(0, 5), (1, 7)]
    assert [fault.found for fault in actual.faults.first] == ["OffsetCommitValue version 99"] * 2
    assert [fault.message.split(":")[0] for fault in actual.faults.first] == [
        "offset 1",
        "offset 3",
    ]
    for what in ("offsets", "groups"):
        result = kafka_index.read_metadata(offsets, what=what)
        assert (result.ok, result.fault_count) == (False, 2)


def test_state_records_of_later_versions_are_faults_and_keep_earlier_states(tmp_path: Path) -> None:
    value: dict[str, Value] = {"producerId": 9, "producerEpoch": 1, "transactionTimeoutMs": 60000}
    value |= {"transactionStatus": 0, "transactionPartitions": None}
    key: dict[str, Value] = {"transactionalId": "t"}
    empty = coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, value)
    write_log(tmp_path / "__transaction_state-0", log_batch(0, empty, of_later_version(empty)))
    later = remote_record("RemotePartitionDeleteMetadataRecord")[1] or b""
    write_log(
        tmp_path / "__remote_log_metadata-0", log_batch(0, (None, later[:2] + b"\x63" + later[3:]))
    )

    result = read(tmp_path)

    assert [one.transactional_id for one in result.transactions or []] == ["t"]
    assert [fault.found for fault in result.faults.first] == [
        "TransactionLogValue version 99",
        "RemotePartitionDeleteMetadataRecord version 99",
    ]


def test_damaged_commit_is_a_fault_and_keeps_the_earlier_commit(offsets: Path) -> None:
    key, value = commit(5)
    assert key is not None
    assert value is not None
    records: list[Pair] = [
        (key, value),
        (key, value[:9]),
        (key[:-1], value),
        commit(6, partition=1),
    ]
    write_log(offsets, log_batch(0, *records))

    result = read(offsets)

    assert [(one.partition, one.offset) for one in result.offsets or []] == [(0, 5), (1, 6)]
    places = [(fault.path, fault.message.split(":")[0]) for fault in result.faults.first]
    assert places == [(str(offsets), "offset 1"), (str(offsets), "offset 2")]


def test_last_record_of_a_transaction_determines_its_state(tmp_path: Path) -> None:
    key: dict[str, Value] = {"transactionalId": "t"}
    common: dict[str, Value] = {"producerId": 9, "producerEpoch": 1, "transactionTimeoutMs": 60000}
    partitions: Value = [Struct(topic="orders", partitionIds=[0, 1])]
    ongoing = {**common, "transactionStatus": 1, "transactionPartitions": partitions}
    empty = {**common, "transactionStatus": 0, "transactionPartitions": None}
    write_log(
        tmp_path / "__transaction_state-7",
        log_batch(
            0,
            coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, empty),
            coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, ongoing),
            coordinator_record(
                TRANSACTION_RECORDS, "TransactionLog", {"transactionalId": "u"}, empty
            ),
            coordinator_record(
                TRANSACTION_RECORDS, "TransactionLog", {"transactionalId": "u"}, None
            ),
        ),
    )

    (transaction,) = read(tmp_path).transactions or []

    assert (transaction.transactional_id, transaction.state) == ("t", "Ongoing")
    assert transaction.partitions == (("orders", 0), ("orders", 1))


def segment_id(number: int) -> Struct:
    partition = Struct(name="orders", id=uuid_of(1), partition=0)
    return Struct(topicIdPartition=partition, id=uuid_of(number))


def update(number: int, state: int) -> Pair:
    return remote_record(
        "RemoteLogSegmentMetadataUpdateRecord",
        remoteLogSegmentId=segment_id(number),
        remoteLogSegmentState=state,
        customMetadata=b"\1",
    )


def test_remote_segments_have_their_last_state_until_they_are_deleted(tmp_path: Path) -> None:
    added = [
        remote_record(
            "RemoteLogSegmentMetadataRecord",
            remoteLogSegmentId=segment_id(number),
            startOffset=10 * number,
            endOffset=10 * number + 9,
            segmentLeaderEpochs=[Struct(leaderEpoch=0, offset=10 * number)],
        )
        for number in (1, 2)
    ]
    write_log(
        tmp_path / "__remote_log_metadata-0",
        log_batch(0, *added, update(1, 1), update(2, 1), update(1, 2), update(1, 3)),
    )

    (segment,) = read(tmp_path).remote_segments or []

    assert (segment.id.segment_id, segment.state.name) == (uuid_of(2), "COPY_SEGMENT_FINISHED")
    assert (segment.start_offset, segment.epochs) == (20, (EpochEntry(0, 20),))
    assert segment.custom_metadata == b"\1"


def test_table_of_a_missing_internal_topic_is_rejected(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5)))

    overview = kafka_index.read_metadata(offsets).rows.to_pylist()

    assert overview == [{"table": "groups", "rows": 1}, {"table": "offsets", "rows": 1}]
    with pytest.raises(InputError, match="__transaction_state"):
        METADATA_TABLES["transactions"].build(read(offsets))


def test_torn_metadata_log_is_a_fault_and_is_read_up_to_the_tear(offsets: Path) -> None:
    write_log(offsets, log_batch(0, commit(5)), log_batch(1, commit(6))[:-10])

    result = read(offsets)

    assert result.faults.total == 1
    assert [one.offset for one in result.offsets or []] == [5]
