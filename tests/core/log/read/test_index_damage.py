"""Any index files at all: with none of them is an answer another."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.log.read.answers import GAP
from tests.support.campaign import sample_size
from tests.support.index_files import (
    ENTRY_BYTES,
    OFFSET,
    SUFFIXES,
    TIME,
    answers,
    file_of,
    right_answers,
)
from tests.support.partitions import (
    Partition,
    Segment,
    offset_file,
    partitions,
    time_file,
)


def damaged(  # noqa: PLR0911, because each kind is one exit
    data: st.DataObject, suffix: str, segment: Segment, plain: Partition
) -> bytes | None:
    """An index file that is not what it should be; None for none at all."""
    right = file_of(segment, suffix, plain)
    kinds = ["none", "empty", "cut", "padded", "noise", "changed", "swapped", "foreign"]
    match data.draw(st.sampled_from(kinds)):
        case "none":
            return None
        case "empty":
            return b""
        case "cut":
            return right[: data.draw(st.integers(0, len(right)))]
        case "padded":
            return right + bytes(data.draw(st.integers(1, 50)))
        case "noise":
            return data.draw(st.binary(max_size=60))
        case "changed" if right:
            changed = bytearray(right)
            for _ in range(data.draw(st.integers(1, 3))):
                at = data.draw(st.integers(0, len(right) - 1))
                changed[at] = data.draw(st.integers(0, 255))
            return bytes(changed)
        case "swapped":
            size = ENTRY_BYTES[suffix]
            slots = [right[at : at + size] for at in range(0, len(right), size)]
            return b"".join(data.draw(st.permutations(slots)))
        case "foreign":
            return file_of(data.draw(st.sampled_from(plain.segments)), suffix, plain)
    return right


# Where times rise, what a time entry says cannot be true of a later batch too. What may be wrong
# with time indexes of other logs has its own tests below.
UNORDERED = partitions(start_inside=False, bounded=False)
RISING = partitions(start_inside=False, bounded=False, rising=True)
DAMAGED = st.one_of(st.tuples(UNORDERED, st.just((OFFSET,))), st.tuples(RISING, st.just(SUFFIXES)))


@settings(max_examples=sample_size(100, one_in=4))
@given(generated=DAMAGED, data=st.data())
def test_missing_or_damaged_indexes_change_no_answer(
    generated: tuple[Partition, tuple[str, ...]], data: st.DataObject
) -> None:
    plain, suffixes = generated
    with tempfile.TemporaryDirectory() as folder:
        directory = plain.write(Path(folder))
        for segment in plain.segments:
            for suffix in suffixes:
                content = damaged(data, suffix, segment, plain)
                path = directory / f"{segment.name}{suffix}"
                path.unlink()
                if content is not None:
                    path.write_bytes(content)
        assert answers(plain, directory)[0] == right_answers(plain)


@settings(max_examples=sample_size(100, one_in=4))
@given(generated=DAMAGED, data=st.data())
def test_index_files_of_an_older_log_change_no_answer(
    generated: tuple[Partition, tuple[str, ...]], data: st.DataObject
) -> None:
    plain, suffixes = generated
    with tempfile.TemporaryDirectory() as folder:
        directory = plain.write(Path(folder))
        for segment in plain.segments:
            for suffix in suffixes:
                kept = data.draw(st.lists(st.booleans(), min_size=6, max_size=6))
                batches = [one for one, keep in zip(segment.batches, kept, strict=False) if keep]
                older = replace(segment, batches=tuple(batches))
                (directory / f"{segment.name}{suffix}").write_bytes(file_of(older, suffix, plain))
        assert answers(plain, directory)[0] == right_answers(plain)


@settings(max_examples=50)
@given(plain=UNORDERED, data=st.data())
def test_subset_of_valid_index_entries_changes_no_answer(
    plain: Partition, data: st.DataObject
) -> None:
    # Another interval, or an index that was full before its log was, has fewer.
    with tempfile.TemporaryDirectory() as folder:
        directory = plain.write(Path(folder))
        for segment in plain.segments:
            offsets, times = segment.entries(plain.interval)
            kept = data.draw(st.lists(st.booleans(), min_size=6, max_size=6))
            fewer = [one for one, keep in zip(offsets, kept, strict=False) if keep]
            (directory / f"{segment.name}{OFFSET}").write_bytes(offset_file(segment, fewer))
            last = times[-1:]
            early = [one for one, keep in zip(times[:-1], kept, strict=False) if keep]
            (directory / f"{segment.name}{TIME}").write_bytes(time_file(segment, early + last))
        found, findings = answers(plain, directory)
        assert found == right_answers(plain)
        assert [finding for finding in findings if finding.kind != GAP] == []
