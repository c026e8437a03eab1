"""Kafka's tools and kcat print what docs/comparison.md says, of the example and of its broker."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conformance.kafka_jars import JudgeUnavailable, needing_kafka
from tests.support.command_line import DUMP, ROOT
from tests.support.timeouts import TIMEOUT_SECONDS
from tools.docs.console_blocks import OURS, fits, steps_of

from .broker import Broker, Home, java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOOLS = {
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-dump-log.sh": "org.apache.kafka.tools.DumpLogSegments",
}
_KCAT = "kcat"
_BROKER = "broker:9092"
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
#: The command of the page that damages the copy.
_CHANGING = "cp"


def test_all_tools_are_asked() -> None:
    asked = {step.command.split()[0] for step in steps_of(PAGE) if step.language != OURS}
    assert asked == {*_TOOLS, _KCAT}


def test_kcat_is_required_where_kafka_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KAFKA_INDEX_REQUIRE_JUDGE", "1")
    with pytest.raises(pytest.fail.Exception, match="package kcat"), needing_kafka():
        _program(_KCAT)


@pytest.fixture(scope="module")
def broker(room: Path) -> Iterator[Broker]:
    """A broker on a copy of the example, whose metadata log lies among the others."""
    home = Home(room / "example")
    shutil.copytree(DUMP, home.data)
    settings = {
        "metadata.log.dir": str(home.data),
        # The open transaction of the example stays open.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    }
    with Broker(home, more_settings=settings) as running:
        yield running


@pytest.mark.parametrize("tool", [*_TOOLS, _KCAT])
def test_a_tool_prints_what_the_page_says(tool: str, broker: Broker, tmp_path: Path) -> None:
    with needing_kafka():
        program = _program(tool)
    shutil.copytree(DUMP, tmp_path / "dump")
    for step in steps_of(PAGE):
        name, *arguments = shlex.split(step.command.replace(_BROKER, broker.bootstrap))
        if name == _CHANGING:
            subprocess.run([name, *arguments], cwd=tmp_path, check=True)
        elif name == tool:
            printed = _printed(tmp_path, *program, *arguments)
            assert fits(step.output, printed), (step.command, printed)


def _program(tool: str) -> list[str]:
    if tool == _KCAT:
        if shutil.which(tool) is None:
            raise JudgeUnavailable("kcat is missing: install Debian's package kcat")
        return [tool]
    return java(_TOOLS[tool], level="error")


def _printed(folder: Path, *command: str) -> tuple[str, ...]:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    return tuple(line.rstrip() for line in done.stdout.splitlines())
