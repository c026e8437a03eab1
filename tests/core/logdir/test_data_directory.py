"""The checkpoints of a data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.core.errors import DamageError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import collecting_unread
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.metadata_files import read_text

DUMP = Path(__file__).parents[3] / "examples" / "dump"
ORDERS = TopicPartition("orders", 0)
HIGH_WATERMARKS = "replication-offset-checkpoint"


def test_brokers_own_checkpoints_are_read() -> None:
    directory = DataDirectory(str(DUMP))
    assert directory.log_start_offset(TopicPartition("shipments.tracking", 0)) == 1500
    assert directory.high_watermark(TopicPartition("page-views", 1)) == 6569
    assert directory.required_checkpoint(HIGH_WATERMARKS).exists


@pytest.mark.parametrize("content", [None, b"", b"0\n1\npage-views 1 6569\n"])
def test_missing_checkpoint_entry_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "replication-offset-checkpoint").write_bytes(content)
    directory = DataDirectory(str(tmp_path))
    assert directory.log_start_offset(ORDERS) is None
    assert directory.high_watermark(ORDERS) is None
    assert directory.required_checkpoint(HIGH_WATERMARKS).exists is (content is not None)


def test_each_checkpoint_is_read_only_when_it_is_requested(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nbroken\n")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 7\n")
    assert DataDirectory(str(tmp_path)).log_start_offset(ORDERS) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0\n1\norders 0\n", "line 3 of the checkpoint is malformed"),
        (b"0\n2\norders 0 5\n", "number of entries"),
        (b"1\n0\n", "line 1 of the checkpoint"),
        (b"0\n1\n\xff 0 5\n", "not UTF-8"),
    ],
)
def test_malformed_checkpoint_is_empty_with_a_note_unless_required(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / HIGH_WATERMARKS
    path.write_bytes(content)
    directory = DataDirectory(str(tmp_path))
    assert directory.high_watermark(ORDERS) is None
    with collecting_unread() as unread:
        noted = directory.checkpoint(HIGH_WATERMARKS).note_fault()
    assert unread == {str(path): noted}
    with pytest.raises(DamageError, match=message) as caught:
        directory.required_checkpoint(HIGH_WATERMARKS)
    assert caught.value.path == str(path)


def test_malformed_log_start_offset_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 x\n")
    result = DataDirectory(str(tmp_path)).required_checkpoint("log-start-offset-checkpoint")
    assert (result.offsets, result.note_fault()) == ({}, None)


def test_checkpoint_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    (tmp_path / HIGH_WATERMARKS).mkdir()
    with pytest.raises(DamageError, match="replication-offset-checkpoint is a directory"):
        DataDirectory(str(tmp_path)).required_checkpoint(HIGH_WATERMARKS)


def test_checkpoint_line_ends_are_not_translated(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"0\r\n1\r\n")
    assert read_text(str(tmp_path / "checkpoint")) == "0\r\n1\r\n"


@pytest.mark.parametrize(
    ("content", "epoch"),
    [
        ('{"version":0,"brokerEpoch":7}', 7),
        ('{"brokerEpoch":-1}', -1),
        ('{"brokerEpoch":null}', None),
        (f'{{"brokerEpoch":{2**63}}}', None),
        ('{"version":0}', None),
        ("[7]", None),
        ("", None),
    ],
)
def test_clean_shutdown_file_has_the_broker_epoch(
    tmp_path: Path, content: str, epoch: int | None
) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_text(content)
    assert DataDirectory(str(tmp_path)).clean_shutdown_epoch() == epoch
