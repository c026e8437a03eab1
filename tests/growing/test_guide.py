"""The example in the guide to writing logs works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_index import PartitionLog
from kafka_index.build import build_segment_files

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "writing.md"


def test_the_example_writes_a_log_that_a_rebuild_agrees_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(GUIDE), "exec"), {})  # noqa: S102, because the code is our own
    partition = tmp_path / "restored" / "orders-0"
    with PartitionLog.open(str(partition)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 1000)
    (tmp_path / "built").mkdir()
    (log_path,) = partition.glob("*.log")
    assert build_segment_files(log_path, tmp_path / "built").status == "built"
    for suffix in (".index", ".timeindex"):
        name = log_path.with_suffix(suffix).name
        assert (tmp_path / "built" / name).read_bytes() == (partition / name).read_bytes()
