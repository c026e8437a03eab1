"""Remote segments of every setting: their logs and indexes, whole, in ranges, and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kafka_index.errors import CorruptObjectError, InputError, KafkaIndexError
from kafka_index.scan.segment_scan import ByteStreamSource
from kafka_index.stores import store_of
from kafka_index.stores.tiered.segment_paths import Layout, SegmentKey
from kafka_index.stores.tiered.tiered_store import TieredStore
from tests.support.tiered import ENCRYPTED, SETTINGS, Setting, keys, setting

_INDEXES = (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_log_is_sound_and_holds_the_offsets_of_its_manifest(name: str) -> None:
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
def test_ranges_and_streams_are_slices_of_the_whole_log(name: str) -> None:
    at = setting(name)
    with keys(at.keys):
        for key in list(at.segments())[:20]:
            path = at.file(key, ".log")
            whole = store_of(path).read(path)
            log = store_of(path).open(path)
            starts, ends = [0, 7, 1000, 1020, len(whole) - 5], [3, 9, 1003, 1030, len(whole) + 5]

            assert log.size_bytes == len(whole)
            assert [bytes(each) for each in log.read_ranges(starts, ends)] == [
                whole[start:end] for start, end in zip(starts, ends, strict=True)
            ]
            assert b"".join(map(bytes, log.stream(999))) == whole[999:]
            assert bytes(log.read_at(len(whole) + 1, 10)) == b""


def test_an_index_that_a_segment_does_not_have_is_not_found() -> None:
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


def test_the_indexes_of_an_encrypted_segment_are_those_of_a_broker() -> None:
    at = setting(ENCRYPTED)
    for key in list(at.segments())[:10]:
        offsets, times, snapshot, epochs = (_read(at, key, suffix) for suffix in _INDEXES)
        assert len(offsets) % 8 == 0
        assert len(times) % 12 == 0
        assert snapshot[:2] == b"\x00\x01"
        assert epochs.startswith(b"0\n")


def _copy(at: Setting, tmp_path: Path, chunks: int) -> tuple[Setting, SegmentKey, Path]:
    """Copy a store; return it, a segment with so many chunks at least, and its log object."""
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
def test_a_flipped_bit_is_an_error_that_names_object_and_chunk(name: str, tmp_path: Path) -> None:
    at, key, log = _copy(setting(name), tmp_path, 2)
    # The header of a zstd frame; a bit inside may stay without effect.
    _flip(log, 1)

    with pytest.raises(CorruptObjectError, match=r"chunk 0 of \d+ cannot be read") as caught:
        _read(at, key)

    assert caught.value.path == str(log)


def test_chunks_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
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
def test_a_cut_object_is_refused_by_its_size(name: str, tmp_path: Path) -> None:
    at, key, log = _copy(setting(name), tmp_path, 1)
    log.write_bytes(log.read_bytes()[:-1])

    with pytest.raises(CorruptObjectError, match="the log object is cut") as caught:
        _read(at, key)

    assert caught.value.path == str(log)


def _outcome(at: Setting, key: SegmentKey) -> bytes | KafkaIndexError:
    try:
        return b"".join(_read(at, key, suffix) for suffix in (".log", ".index", ".snapshot"))
    except KafkaIndexError as error:
        return error


@pytest.mark.parametrize("name", ["aiven-plain", "aiven-zstd", ENCRYPTED])
def test_a_flipped_bit_of_a_manifest_is_an_error_or_without_effect_on_the_bytes(
    name: str, tmp_path: Path
) -> None:
    at, key, log = _copy(setting(name), tmp_path, 1)
    whole = _outcome(at, key)
    path = log.with_suffix(".rsm-manifest")
    text = path.read_bytes()
    errors = []
    for position in np.random.default_rng(1).choice(len(text), 60, replace=False).tolist():
        _flip(path, position)
        found = _outcome(at, key)
        path.write_bytes(text)
        if isinstance(found, KafkaIndexError):
            errors.append(found)
        else:
            assert found == whole
    assert len(errors) > 30
    assert all(str(log.with_suffix("")) in str(error.path) for error in errors)


def test_another_key_pair_is_an_error_that_names_the_key_and_no_material(tmp_path: Path) -> None:
    at, key, log = _copy(setting(ENCRYPTED), tmp_path, 1)
    swapped = tuple(
        (name, path) for (name, _), (_, path) in zip(at.keys, at.keys[::-1], strict=True)
    )
    path = at.file(key, ".log")

    with keys(swapped), pytest.raises(CorruptObjectError, match="cannot be decrypted") as caught:
        store_of(path).read(path)

    assert caught.value.path == str(log.with_suffix(".rsm-manifest"))
    assert "BEGIN" not in repr(caught.value.__dict__)


def test_a_key_pair_that_was_not_given_is_asked_for_by_name() -> None:
    at = setting("aiven-enc")
    path = at.file(next(at.segments()), ".log")

    with keys(()), pytest.raises(InputError, match="give its private key, --tiered-key gk-1=FILE"):
        store_of(path).read(path)


@pytest.mark.parametrize("content", [b"", b"no key\n", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_without_a_private_key_is_refused_without_its_content(
    content: bytes, tmp_path: Path
) -> None:
    at = setting("aiven-enc")
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    path = at.file(next(at.segments()), ".log")

    with (
        keys((("gk-1", str(file)),)),
        pytest.raises(InputError) as caught,
    ):
        store_of(path).read(path)

    assert caught.value.message == "not a private key that can be read"
    assert caught.value.path == str(file)
    assert caught.value.__cause__ is None


def test_indexes_that_are_cut_or_altered_are_errors(tmp_path: Path) -> None:
    at, key, log = _copy(setting(ENCRYPTED), tmp_path, 1)
    indexes = log.with_suffix(".indexes")
    _flip(indexes, 20)
    with pytest.raises(CorruptObjectError, match="the index of the segment cannot be read"):
        _read(at, key, ".index")

    indexes.write_bytes(indexes.read_bytes()[:-1])
    with pytest.raises(CorruptObjectError, match="another size than its manifest says"):
        _read(at, key, ".index")
