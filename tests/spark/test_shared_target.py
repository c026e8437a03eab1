"""The marker by which a task recognises the folder that the driver means."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.errors import EngineError, PublishError
from kafka_index.spark.executors import shared_target


def test_a_task_that_sees_the_marker_goes_on_and_nothing_is_left(tmp_path: Path) -> None:
    with shared_target([str(tmp_path)]) as target:
        target.check()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_sees_another_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with shared_target([str(folder)]) as target:
        folder.rename(tmp_path / "of-the-driver")
        folder.mkdir()
        with pytest.raises(EngineError, match="does not see the driver's folder") as caught:
            target.check()
        assert caught.value.path == str(folder)


def test_the_marker_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    (tmp_path / f".kafka-index.{'0' * 16}.shared").touch()
    (tmp_path / ".kafka-index.lock").touch()
    with shared_target([str(tmp_path)]):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".kafka-index.lock"]


def test_a_folder_that_cannot_be_marked_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(PublishError) as caught, shared_target([str(tmp_path), missing]):
        pass
    assert caught.value.path == missing
    assert list(tmp_path.iterdir()) == []


def test_stores_that_are_the_same_everywhere_are_not_marked() -> None:
    with shared_target(["s3://bucket/out"]) as target:
        target.check()
    assert target.markers == ()
