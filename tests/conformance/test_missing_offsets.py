"""Logs that Kafka's own cleaner has been over, as 3.9.1 and as 4.3.1 clean them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import run_here
from tests.support.missing_offsets import (
    REMOVALS,
    Removal,
    predicted,
    read_cleaned_logs,
    restored,
    verified,
    write_partition,
)

from .make_golden import cleaned_by

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference


def test_golden_logs_are_as_kafka_cleans_them(old_reference: KafkaReference) -> None:
    assert cleaned_by(old_reference) == read_cleaned_logs()


@pytest.mark.parametrize("place", [None, *REMOVALS])
def test_offsets_removed_by_the_kafka_4_cleaner_are_not_missing(
    reference: KafkaReference, tmp_path: Path, place: Removal | None
) -> None:
    for form in cleaned_by(reference):
        folder = tmp_path / f"{form.magic}-{form.codec}"
        root = write_partition(folder / "data", form.after, form.cleaned_to)
        missing = [] if place is None else place(root)

        assert form.cleaned_to == 48
        for named in (verified, restored, predicted):
            assert named(root) == (int(bool(missing)), missing), (form.magic, form.codec)


def test_copies_cleaned_before_and_after_kafka_4_are_equal(
    reference: KafkaReference, tmp_path: Path
) -> None:
    for form in cleaned_by(reference):
        folder = tmp_path / f"{form.magic}-{form.codec}"
        before = write_partition(folder / "before", form.before)
        after = write_partition(folder / "after", form.after, form.cleaned_to)

        result = run_here("verify", "--input", before, "--against", after)

        assert result.returncode == 0, (form.magic, form.codec, result.stdout)
