"""Remote segments of every setting: complete, partial and damaged logs and indexes."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher
from Crypto.PublicKey import ECC, RSA

from kafka_index.core.cluster.remote.remote_log_metadata import (
    MetadataEvent,
    MetadataRecord,
    PartitionDeleteEvent,
    RemoteLogMetadata,
    SegmentEvent,
    SegmentState,
    parse_metadata_record,
    read_remote_log_metadata,
)
from kafka_index.core.errors import (
    CorruptLogError,
    CorruptObjectError,
    CorruptRecordError,
    InputError,
    KafkaIndexError,
)
from kafka_index.core.format.names import REMOTE_LOG_METADATA_TOPIC
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.tiered.manifest import EncryptedDataKey
from kafka_index.core.fs.tiered.tiered_store import KeyRing, TieredStore, read_private_key
from kafka_index.core.fs.uris import Layout, SegmentKey
from kafka_index.core.log.scan.segment_scan import ByteStreamSource
from kafka_index.core.logdir.listing import list_dump
from tests.support.tiered import ENCRYPTED, SETTINGS, Setting, keys, setting

_INDEXES = (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint")


@pytest.mark.parametrize("name", SETTINGS)
def test_remote_logs_are_intact_and_have_the_offsets_of_their_manifests(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        for key in at.segments():
            path = at.file(key, ".log")
            source = ByteStreamSource(
                store_of(path).open(path).stream(), segment_base_offset=key.start_offset
            )
            chunks = [(chunk.base_offset[0], chunk.last_offset[-1]) for chunk in source.chunks()]

            assert source.stop is None
            assert chunks[0][0] == key.start_offset
            store = store_of(path)
            if at.layout is Layout.AIVEN and isinstance(store, TieredStore):
                manifest = store.manifest(f"{at.remote}/{key.name}")
                assert chunks[-1][1] == manifest.end_offset
                assert source.log_size_bytes == manifest.log_size_bytes


@pytest.mark.parametrize("name", SETTINGS)
def test_ranges_and_streams_are_slices_of_the_complete_log(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        for key in list(at.segments())[:20]:
            path = at.file(key, ".log")
            whole = store_of(path).read(path)
            log = store_of(path).open(path)
            starts, ends = [0, 7, 1000, 1020, len(whole) - 5], [3, 9, 1003, 1030, len(whole) + 5]

            assert log.size_bytes == len(whole)
            assert [bytes(range_) for range_ in log.read_ranges(starts, ends)] == [
                whole[start:end] for start, end in zip(starts, ends, strict=True)
            ]
            assert b"".join(map(bytes, log.stream(999))) == whole[999:]
            assert bytes(log.read_at(len(whole) + 1, 10)) == b""


def test_index_that_a_segment_does_not_have_is_not_found() -> None:
    at = setting("aiven-plain")
    missing = 0
    for key in at.segments():
        path = at.file(key, ".txnindex")
        try:
            entries = store_of(path).read(path)
        except FileNotFoundError:
            missing += 1
        else:
            assert len(entries) % 34 == 0
    assert missing == 69


def test_indexes_of_an_encrypted_segment_equal_those_of_a_broker() -> None:
    at = setting(ENCRYPTED)
    for key in list(at.segments())[:10]:
        offsets, times, snapshot, epochs = (_read(at, key, suffix) for suffix in _INDEXES)
        assert len(offsets) % 8 == 0
        assert len(times) % 12 == 0
        assert snapshot[:2] == b"\x00\x01"
        assert epochs.startswith(b"0\n")


def _copy(at: Setting, tmp_path: Path, chunks: int) -> tuple[Setting, SegmentKey, Path]:
    """Copy a store; return it, a segment with at least this number of chunks, and its log."""
    shutil.copytree(at.path, tmp_path / at.path.name)
    copied = Setting(tmp_path / at.path.name)
    with keys(at.keys):
        for key in copied.segments():
            store = store_of(copied.file(key, ".log"))
            assert isinstance(store, TieredStore)
            if store.manifest(f"{copied.remote}/{key.name}").chunks.count >= chunks:
                return copied, key, Path(f"{copied.remote}/{key.name}.log")
    raise AssertionError("no segment is large enough")


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _read(at: Setting, key: SegmentKey, suffix: str = ".log") -> bytes:
    path = at.file(key, suffix)
    with keys(at.keys):
        return store_of(path).read(path)


@pytest.mark.parametrize("name", ["aiven-zstd", "aiven-enc", ENCRYPTED])
def test_flipped_bit_is_an_error_with_object_and_chunk(name: str, tmp_path: Path) -> None:
    at, key, log = _copy(setting(name), tmp_path, 2)
    # The header of a zstd frame; a bit inside may stay without effect.
    _flip(log, 1)

    with pytest.raises(CorruptObjectError, match=r"chunk 0 of \d+ cannot be read") as caught:
        _read(at, key)

    assert caught.value.path == str(log)


def test_only_requested_chunks_are_read(tmp_path: Path) -> None:
    at, key, log = _copy(setting(ENCRYPTED), tmp_path, 3)
    whole = _read(at, key)
    path = at.file(key, ".log")
    with keys(()), keys(at.keys):
        store = store_of(path)
        assert isinstance(store, TieredStore)
        chunks = store.manifest(f"{at.remote}/{key.name}").chunks
        data = bytearray(log.read_bytes())
        data[: int(chunks.starts[1])] = bytes(int(chunks.starts[1]))
        log.write_bytes(data)
        start = chunks.chunk_size_bytes

        assert bytes(store.open(path).read_at(start, 10)) == whole[start : start + 10]


@pytest.mark.parametrize("name", ["aiven-plain", "aiven-zstd", "aiven-enc", ENCRYPTED])
def test_truncated_object_is_rejected_by_its_size(name: str, tmp_path: Path) -> None:
    at, key, log = _copy(setting(name), tmp_path, 1)
    log.write_bytes(log.read_bytes()[:-1])

    with pytest.raises(CorruptObjectError, match="the size of the log object differs") as caught:
        _read(at, key)

    assert caught.value.path == str(log)


def _outcome(at: Setting, key: SegmentKey) -> bytes | KafkaIndexError:
    try:
        return b"".join(_read(at, key, suffix) for suffix in (".log", ".index", ".snapshot"))
    except KafkaIndexError as error:
        return error


@pytest.mark.parametrize("name", ["aiven-plain", "aiven-zstd", ENCRYPTED])
def test_flipped_bit_of_a_manifest_is_an_error_or_without_effect_on_the_bytes(
    name: str, tmp_path: Path
) -> None:
    at, key, log = _copy(setting(name), tmp_path, 1)
    whole = _outcome(at, key)
    path = log.with_suffix(".rsm-manifest")
    text = path.read_bytes()
    errors = []
    for position in np.random.default_rng(1).choice(len(text), 60, replace=False).tolist():
        _flip(path, position)
        result = _outcome(at, key)
        path.write_bytes(text)
        if isinstance(result, KafkaIndexError):
            errors.append(result)
        else:
            assert result == whole
    assert len(errors) > 30
    assert all(str(log.with_suffix("")) in str(error.path) for error in errors)


def test_wrong_key_pair_is_an_error_with_the_key_id_and_without_key_material(
    tmp_path: Path,
) -> None:
    at, key, log = _copy(setting(ENCRYPTED), tmp_path, 1)
    swapped = tuple(
        (name, path) for (name, _), (_, path) in zip(at.keys, at.keys[::-1], strict=True)
    )
    path = at.file(key, ".log")

    with keys(swapped), pytest.raises(CorruptObjectError, match="cannot be decrypted") as caught:
        store_of(path).read(path)

    assert caught.value.path == str(log.with_suffix(".rsm-manifest"))
    assert "BEGIN" not in repr(caught.value.__dict__)


def test_missing_key_pair_is_reported_by_name() -> None:
    at = setting("aiven-enc")
    path = at.file(next(at.segments()), ".log")

    with (
        keys(()),
        pytest.raises(InputError, match="private key is missing: give --tiered-key gk-1=FILE"),
    ):
        store_of(path).read(path)


CURVE = ECC.construct(curve="p256", d=1).export_key(format="PEM").encode()
PUBLIC = RSA.construct((3233, 17)).export_key()


@pytest.mark.parametrize(
    "content", [b"", b"no key\n", b"-----BEGIN PRIVATE KEY-----\nAAAA\n", PUBLIC, CURVE]
)
def test_file_without_a_private_key_is_rejected_without_its_content(
    content: bytes, tmp_path: Path
) -> None:
    at = setting("aiven-enc")
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    path = at.file(next(at.segments()), ".log")

    with keys((("gk-1", str(file)),)), pytest.raises(InputError) as caught:
        store_of(path).read(path)

    assert caught.value.message == "the file is not a readable RSA private key"
    assert caught.value.path == str(file)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_truncated_or_altered_remote_index_is_an_error(tmp_path: Path) -> None:
    at, key, log = _copy(setting(ENCRYPTED), tmp_path, 1)
    indexes = log.with_suffix(".indexes")
    _flip(indexes, 20)
    with pytest.raises(CorruptObjectError, match="the index of the segment cannot be read"):
        _read(at, key, ".index")

    indexes.write_bytes(indexes.read_bytes()[:-1])
    with pytest.raises(CorruptObjectError, match="differs from its manifest"):
        _read(at, key, ".index")


def encrypt_oaep(n: int, e: int, message: bytes) -> bytes:
    """Encrypt according to RFC 8017, 7.1.1."""
    size, hashed = (n.bit_length() + 7) // 8, hashlib.sha3_512(b"").digest()
    block = hashed + bytes(size - len(message) - 130) + b"\x01" + message
    seed = os.urandom(64)
    masked_block = masked(block, seed)
    encoded = b"\x00" + masked(seed, masked_block) + masked_block
    return pow(int.from_bytes(encoded, "big"), e, n).to_bytes(size, "big")


def masked(data: bytes, seed: bytes) -> bytes:
    counters = range(len(data) // 64 + 1)
    mask = b"".join(hashlib.sha3_512(seed + n.to_bytes(4, "big")).digest() for n in counters)
    return bytes(a ^ b for a, b in zip(data, mask, strict=False))


@pytest.fixture(scope="module")
def key() -> RSA.RsaKey:
    return RSA.import_key(Path(setting("aiven-enc").keys[0][1]).read_bytes())


@pytest.fixture(scope="module")
def cipher() -> PKCS1OAEP_Cipher:
    return read_private_key(setting("aiven-enc").keys[0][1])


@pytest.mark.parametrize("size", [0, 1, 32, 126])
def test_decryption_returns_the_original_bytes(
    key: RSA.RsaKey, cipher: PKCS1OAEP_Cipher, size: int
) -> None:
    message = bytes(range(size))

    assert cipher.decrypt(encrypt_oaep(key.n, key.e, message)) == message


@pytest.mark.parametrize("size", [0, 31, 33])
def test_data_key_of_another_size_is_rejected(key: RSA.RsaKey, size: int) -> None:
    data_key = encrypt_oaep(key.n, key.e, bytes(size))
    ring = KeyRing(dict(setting("aiven-enc").keys))

    with pytest.raises(CorruptObjectError, match="cannot be decrypted"):
        ring.decrypt(EncryptedDataKey("gk-1", data_key, b""), "a.rsm-manifest")


def test_message_that_was_altered_anywhere_is_rejected(
    key: RSA.RsaKey, cipher: PKCS1OAEP_Cipher
) -> None:
    ciphertext = encrypt_oaep(key.n, key.e, b"x" * 32)
    for position in range(0, len(ciphertext), 17):
        altered = bytearray(ciphertext)
        altered[position] ^= 0x40

        with pytest.raises(ValueError, match=r"."):
            cipher.decrypt(bytes(altered))


@pytest.mark.parametrize("content", [bytes(size) for size in (0, 255, 257)] + [b"\xff" * 256])
def test_message_of_another_size_is_rejected(cipher: PKCS1OAEP_Cipher, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        cipher.decrypt(content)


def test_no_part_of_a_key_is_printed(key: RSA.RsaKey, cipher: PKCS1OAEP_Cipher) -> None:
    assert not {str(key.d), str(key.p), str(key.n)} & set(re.findall("[0-9]+", repr(cipher)))


def _records(at: Setting) -> list[MetadataRecord]:
    listing = list_dump([at.data], topics=re.compile(REMOTE_LOG_METADATA_TOPIC))
    return list(read_remote_log_metadata(listing.segments))


def _as_kafka_prints(event: MetadataEvent) -> str:
    assert not isinstance(event, PartitionDeleteEvent)
    segment = (
        f"RemoteLogSegmentId{{topicIdPartition={event.id.topic_id}:{event.topic}-"
        f"{event.id.partition}, id={event.id.segment_id}}}"
    )
    custom = "Optional.empty"
    if event.custom_metadata is not None:
        custom = f"Optional[CustomMetadata{{{len(event.custom_metadata)} bytes}}]"
    if isinstance(event, SegmentEvent):
        epochs = ", ".join(f"{epoch.epoch}={epoch.start_offset}" for epoch in event.epochs)
        return (
            f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment}, "
            f"startOffset={event.start_offset}, endOffset={event.end_offset}, "
            f"brokerId={event.broker_id}, maxTimestampMs={event.max_timestamp_ms}, "
            f"eventTimestampMs={event.event_timestamp_ms}, segmentLeaderEpochs={{{epochs}}}, "
            f"segmentSizeInBytes={event.size_bytes}, customMetadata={custom}, "
            f"state={event.state.name}, "
            f"txnIdxEmpty={str(event.is_txn_index_empty).lower()}}}"
        )
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment}, customMetadata={custom}, "
        f"state={event.state.name}, eventTimestampMs={event.event_timestamp_ms}, "
        f"brokerId={event.broker_id}}}"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_events_equal_the_output_of_kafka_dump_log(name: str) -> None:
    at = setting(name)
    text = gzip.decompress((at.path / "truth" / "remote_log_metadata.txt.gz").read_bytes()).decode()
    expected = [tuple(line.split("\t")) for line in text.splitlines()[1:]]

    actual = [
        (str(record.partition), str(record.offset), _as_kafka_prints(record.event))
        for record in _records(at)
    ]

    assert sorted(actual) == sorted(expected)


def test_last_state_of_a_segment_is_used() -> None:
    metadata = RemoteLogMetadata.from_events(
        record.event for record in _records(setting("aiven-plain"))
    )
    states = [segment.state for segment in metadata.segments.values()]

    assert states.count(SegmentState.COPY_SEGMENT_FINISHED) == 85
    assert states.count(SegmentState.DELETE_SEGMENT_FINISHED) == 5
    assert states.count(SegmentState.COPY_SEGMENT_STARTED) == 1


@pytest.mark.parametrize(
    "value", [b"", b"\x02\x00\x00", b"\x01\x09\x00", b"\x01\x00\x01", b"\x01\x00\x00\x05ab"]
)
def test_malformed_remote_log_event_is_rejected(value: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        parse_metadata_record(value)


def test_damaged_metadata_log_is_an_error_because_later_states_are_unknown(
    tmp_path: Path,
) -> None:
    at = setting("local")
    listing = list_dump([at.data], topics=re.compile(REMOTE_LOG_METADATA_TOPIC))
    segment = max(listing.segments, key=lambda each: each.log_size_bytes)
    data = bytearray(Path(segment.log_path).read_bytes())
    data[len(data) // 2] ^= 1
    folder = tmp_path / f"{segment.topic}-{segment.partition}"
    folder.mkdir()
    (folder / Path(segment.log_path).name).write_bytes(data)

    damaged = list_dump([str(folder)], topics=None).segments
    with pytest.raises(CorruptLogError, match="later events of remote segments cannot be read"):
        list(read_remote_log_metadata(damaged))
