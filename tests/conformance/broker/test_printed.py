"""Kafka's tools and kcat print of a broker on the example what we do of the logs below it.

``cat`` prints, to the byte, what kcat prints; docs/comparison.md says what the tools print.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.conformance.kafka_jars import KafkaUnavailable, needing_kafka
from tests.support.command_line import DUMP, ROOT, run_here
from tests.support.timeouts import TIMEOUT_SECONDS
from tools.docs.console_blocks import OURS, fits, steps_of

from .broker import Broker, BrokerFolders, java
from .client import ISOLATIONS

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
PARTITIONS = (
    *((name, 0) for name in ("customer-profiles", "gateway.access-log", "imported-history")),
    *(("orders.eu-west", number) for number in range(3)),
    *(("payments", number) for number in range(2)),
)
FORMATS = (
    r"%o|%k|%s\n",
    r"%t [%p] at %o, %T: %K %S {%h}\n",
    # Four bytes of length before each value, and no line ends.
    r"%R%s",
    r"100%%\x20\x41\t\101\65 \\ %o\r\n\q",
    "%o %k",
)


@pytest.fixture(scope="module")
def broker(broker_root: Path) -> Iterator[Broker]:
    """A broker on a copy of the example, whose metadata log lies among the others."""
    home = BrokerFolders(broker_root / "example")
    shutil.copytree(DUMP, home.data)
    settings = {
        "metadata.log.dir": str(home.data),
        # The open transaction of the example stays open, and no log is cleaned meanwhile.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
        "log.cleaner.enable": "false",
    }
    with Broker(home, more_settings=settings) as running:
        yield running


def test_every_documented_tool_is_tested() -> None:
    asked = {step.command.split()[0] for step in steps_of(PAGE) if step.language != OURS}
    assert asked == {*_TOOLS, _KCAT}


def test_kcat_is_required_for_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KAFKA_INDEX_REQUIRE_KAFKA", "1")
    with pytest.raises(pytest.fail.Exception, match="package kcat"), needing_kafka():
        _program(_KCAT)


@pytest.mark.parametrize("tool", [*_TOOLS, _KCAT])
def test_documented_tool_output_equals_its_real_output(
    tool: str, broker: Broker, tmp_path: Path
) -> None:
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
            raise KafkaUnavailable("kcat is missing: install Debian's package kcat")
        return [tool]
    return java(_TOOLS[tool], level="error")


def _printed(folder: Path, *command: str) -> tuple[str, ...]:
    result = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    return tuple(line.rstrip() for line in result.stdout.splitlines())


def kcat(broker: Broker, *arguments: object, given: bytes = b"") -> bytes:
    with needing_kafka():
        program = _program(_KCAT)
    result = subprocess.run(
        [*program, "-b", broker.bootstrap, "-q", *map(str, arguments)],
        input=given,
        capture_output=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    return result.stdout


def cat(broker: Broker, topic: str, *arguments: object) -> bytes:
    """Print by ``cat`` the logs below the broker that runs."""
    result = run_here("cat", topic, "--input", broker.home.data, *map(str, arguments))
    assert result.returncode == 0, result.stderr
    return result.stdout.encode("utf-8", "surrogateescape")


def both(
    broker: Broker,
    topic: str,
    partition: int,
    form: str,
    *,
    of_kcat: tuple[object, ...] = ("-o", "beginning"),
    of_cat: tuple[object, ...] = (),
    isolation: str = "read_uncommitted",
) -> tuple[bytes, bytes]:
    """Print a partition by kcat and by ``cat``."""
    level = ("-X", f"isolation.level={isolation}", "-e", "-f", form)
    theirs = kcat(broker, "-C", "-t", topic, "-p", partition, *of_kcat, *level)
    return theirs, cat(
        broker, topic, "-p", partition, *of_cat, "--isolation", isolation, "-f", form
    )


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
def test_records_of_a_partition_are_printed_as_by_kcat(
    topic: str, partition: int, isolation: str, broker: Broker
) -> None:
    expected, actual = both(
        broker, topic, partition, r"%t %p %o %T %K %S %k %s %h\n", isolation=isolation
    )
    assert len(expected) > 10_000
    assert actual == expected


@pytest.mark.parametrize(("form", "more"), [*product(FORMATS, ((), ("-Z",)))])
def test_output_formats_equal_those_of_kcat(
    form: str, more: tuple[str, ...], broker: Broker
) -> None:
    # It has keys and values that are null, and headers.
    expected, actual = both(
        broker, "orders.eu-west", 1, form, of_kcat=("-o", "beginning", *more), of_cat=more
    )
    assert len(expected) > 1000
    assert actual == expected


@pytest.mark.parametrize(
    ("of_kcat", "of_cat"),
    [
        (("-o", 100, "-c", 7), ("-o", "100..107")),
        (("-o", 100, "-c", 7), ("-o", 100, "-n", 7)),
        (("-o", "beginning", "-c", 3), ("-n", 3)),
        (("-o", -7), ("--tail", "-n", 7)),
        (
            ("-o", "s@1795245912700", "-o", "e@1795245912800"),
            ("--from", 1795245912700, "--to", 1795245912800),
        ),
    ],
    ids=str,
)
def test_offset_ranges_select_the_records_of_kcat(
    of_kcat: tuple[object, ...], of_cat: tuple[object, ...], broker: Broker
) -> None:
    # Its times rise, and no offset is missing.
    topic = "gateway.access-log"
    expected, actual = both(broker, topic, 0, r"%o %T %k\n", of_kcat=of_kcat, of_cat=of_cat)
    assert expected
    assert actual == expected


def test_empty_and_binary_records_are_printed_as_by_kcat(broker: Broker) -> None:
    to = ("-P", "-t", "app-logs", "-p", 1)
    headers = ("-H", "a=1", "-H", "empty=", "-H", "none")
    given = b"key:value\n:no key\nno value:\n\xff\x00\xfe:\x1b[31m\x80\n"
    kcat(broker, *to, "-K", ":", *headers, given=given)
    kcat(broker, *to, "-K", ":", "-Z", given=given)
    for form in (r"%o %K %S %k|%s|%h\n", "%R%s", "%s"):
        expected, actual = both(
            broker, "app-logs", 1, form, of_kcat=("-o", -8), of_cat=("--tail", "-n", 8)
        )
        assert actual == expected
    assert actual == b"valueno key\x1b[31m\x80" * 2
