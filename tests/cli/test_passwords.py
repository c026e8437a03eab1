"""A URI with a password ends every command before anything is opened, and is shown nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest

import kafka_index as package
from kafka_index.cli.app import COMMANDS, load_command
from kafka_index.core.errors import InputError
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.spark.data_source import parse_options
from tests.support.command_line import DUMP, kafka_index, run_here

CANARY = "canary-5309"
URI = f"s3://user:{CANARY}@bucket/key"
# Options whose value is no place, though it may look like one.
DATA = re.compile(
    r"REGEX|TEXT|EXPR|KEY|ID|NAME|LIST|TIME|N|COLUMN|OLD=NEW|TOPIC.*|NAME=VALUE|URL|\[PAGE\]|A\.\.B|text\|json\|FORMAT|N,N\.\.\.|DURATION|MB/S|HOST:PORT|RUN|P|"
)


def parameters_of(names: Iterable[str]) -> Iterator[tuple[str, list[click.Parameter]]]:
    """Yield commands, those of a group by both names, with their parameters."""
    for name in names:
        result = load_command(name, as_job=False)
        own = result.commands.items() if isinstance(result, click.Group) else [("", result)]
        yield from ((f"{name} {below}".strip(), each.params) for below, each in own)


def places() -> Iterator[tuple[str, str, str]]:
    """Yield command, option and value, for every parameter that takes a place."""
    for command, parameters in parameters_of(COMMANDS):
        for parameter in parameters:
            metavar = parameter.metavar or ""
            if DATA.fullmatch(metavar):
                continue
            if isinstance(parameter, click.Argument):
                yield command, "", URI
            else:
                form = metavar.split("|")[-1]
                value = f"{form.split('=')[0]}={URI}" if "=" in form else URI
                yield command, max(parameter.opts, key=len), value


CASES = list(places())


def test_password_options_of_every_store_are_known() -> None:
    options = {option for _, option, _ in CASES}
    expected = "input output report summary queries indexes tiered config metadata seed against"
    expected += " drop-keys offsets storage-option tiered-key until key-prefix"
    assert {"", *(f"--{name}" for name in expected.split())} <= options


@pytest.mark.parametrize(("command", "option", "value"), CASES)
@pytest.mark.parametrize("ending", ["", ".json"])
def test_no_command_accepts_a_password_option(
    command: str, option: str, value: str, ending: str, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    given = [f"{option}={value}{ending}"] if option else [f"{value}{ending}"]
    if option != "--summary":
        given += ["--summary", str(summary)]

    result = run_here(*command.split(), *given)

    assert result.returncode == 2
    assert re.search("contains a password|contains a secret", result.stderr), result.stderr
    assert CANARY not in result.stdout + result.stderr
    # Nothing was opened, but for the summary.
    assert option == "--storage-option" or not list(tmp_path.iterdir())


def test_unknown_password_option_is_not_echoed(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    arguments = (["build", f"--inptu={URI}"], ["warm-up", URI], ["lookup", "-p", URI])
    for done in (kafka_index(URI), *(run_here(*words) for words in arguments)):
        assert done.returncode == 2
        assert CANARY not in done.stdout + done.stderr
    done = run_here("build", "--summary", summary, "--format", URI, "--verbose")
    assert done.returncode == 2
    assert CANARY not in done.stderr + json.dumps(json.loads(summary.read_text()))


FUNCTIONS: dict[str, Callable[[], object]] = {
    "build_indexes input": lambda: package.build_indexes(URI, "/none"),
    "build_indexes output": lambda: package.build_indexes(DUMP, URI),
    "verify": lambda: package.verify([DUMP, URI]),
    "verify indexes": lambda: package.verify(DUMP, indexes=URI),
    "verify metadata": lambda: package.verify(DUMP, metadata=URI),
    "read_records": lambda: package.read_records([DUMP, URI]),
    "read_records indexes": lambda: package.read_records(DUMP, indexes=URI),
    "restore_dump": lambda: package.restore_dump(DUMP, URI),
    "restore_dump seeds": lambda: package.restore_dump(DUMP, "/none/out", seeds=[URI]),
    "tiered": lambda: TieredOptions((URI,)),
    "PartitionLog": lambda: package.PartitionLog.open(URI),
    "read_batches": lambda: list(package.read_batches(URI)),
    "build_segment_files": lambda: package.build_segment_files(URI, "/none"),
    "LogSegment": lambda: package.LogSegment.open(URI),
    "kafka-log path": lambda: parse_options({"path": URI}),
    "kafka-log paths": lambda: parse_options({"path": json.dumps([str(DUMP), URI])}),
    "kafka-log indexes": lambda: parse_options({"path": str(DUMP), "indexes": URI}),
    "kafka-log tiered": lambda: parse_options({"tiered": URI}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_accepts_a_password_option(name: str) -> None:
    with pytest.raises(InputError, match="contains a password") as caught:
        FUNCTIONS[name]()
    assert CANARY not in str(caught.value)
