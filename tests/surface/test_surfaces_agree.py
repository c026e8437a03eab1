"""Each command and each kind of fault: terminal, summary, page, exit code and Python agree."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import kafka_index
from kafka_index import KafkaIndexError, Result, RunOutcome
from kafka_index.cli.exit_status import ExitCode
from tests.support.child_processes import without_override
from tests.support.command_line import run_here
from tests.support.damaged_dumps import (
    damage_middle,
    leave_whole,
    log_path,
    make_log_a_folder,
    remove_segment,
    write_dump,
)

QUERIES = pa.table({"topic": ["orders"] * 36, "partition": [0] * 36, "offset": range(36)})
#: A part of the conclusion of a lookup that writes answers, which the function does not.
_WRITTEN = re.compile(r"; answers in \S+?\.csv")
SEVERITY = {RunOutcome.DONE: "good", RunOutcome.ENVIRONMENT: "notable", RunOutcome.DAMAGE: "bad"}


class Command(NamedTuple):
    """The options of a command besides its input, and its function; both have an output folder.

    `ending` is that of its report, none without one. `unaffected` are faults that are none for it.
    """

    options: Callable[[str], list[str]]
    function: Callable[[Path, str], Result]
    ending: str = "html"
    unaffected: tuple[str, ...] = ()


def find(root: Path, _: str) -> Result:
    found = kafka_index.find_records(root, key="k1")
    found.to_arrow()
    return found


def look_up(output: str) -> list[str]:
    """Return the options of a lookup of `QUERIES`."""
    queries = Path(output).parent / "queries.csv"
    pa_csv.write_csv(QUERIES, queries)
    return [
        "--queries",
        str(queries),
        "--by",
        "offset",
        "--resolve",
        "record",
        "--output",
        f"{output}.csv",
    ]


def lookup(root: Path, _: str) -> Result:
    return kafka_index.lookup_offsets(root, QUERIES, resolve="record")


def schema_folder(output: str) -> str:
    """Return a folder with a schema."""
    folder = Path(output).parent / "schemas"
    folder.mkdir(exist_ok=True)
    (folder / "key.avsc").write_text('"string"')
    return str(folder)


#: A command has a row here once its surfaces are derived from its request and result.
COMMANDS = {
    # Missing offsets are no damage of the logs that are there.
    "build": Command(
        lambda output: ["--output", output],
        kafka_index.build_indexes,
        unaffected=("remove_segment",),
    ),
    "export": Command(
        lambda output: ["--output", output],
        kafka_index.export_records,
        "parquet",
    ),
    "find": Command(lambda _: ["--key", "k1"], find, ""),
    "lookup": Command(look_up, lookup, unaffected=("remove_segment",)),
    "predict": Command(lambda _: [], lambda root, _: kafka_index.predict(root)),
    "restore": Command(
        lambda output: ["--output", output, "--new-topic-ids"],
        lambda root, output: kafka_index.restore_dump(root, output, new_topic_ids=True),
    ),
    "rewrite": Command(
        lambda output: ["--output", output, "--drop-where", "offset = 1"],
        lambda root, output: kafka_index.rewrite_dump(root, output, drop_where="offset = 1"),
        "parquet",
    ),
    "schemas": Command(
        lambda output: ["--schemas", schema_folder(output)],
        lambda root, output: kafka_index.read_schemas(root, schemas=schema_folder(output)),
        "",
    ),
    "verify": Command(lambda _: [], lambda root, _: kafka_index.verify(root)),
}


def put_pipe_for_log(root: Path) -> None:
    log = log_path(root, 12)
    log.unlink()
    os.mkfifo(log)


def forbid_log(root: Path) -> None:
    log_path(root, 12).chmod(0)


#: Each kind of fault, and the exit code of every command.
FAULTS: dict[Callable[[Path], None], ExitCode] = {
    leave_whole: ExitCode.DONE,
    put_pipe_for_log: ExitCode.DAMAGE,
    make_log_a_folder: ExitCode.DAMAGE,
    damage_middle: ExitCode.DAMAGE,
    remove_segment: ExitCode.DAMAGE,
    forbid_log: ExitCode.ENVIRONMENT,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", COMMANDS)
def test_fault_has_same_conclusion_on_every_surface(
    tmp_path: Path, name: str, fault: Callable[[Path], None]
) -> None:
    command, root = COMMANDS[name], tmp_path / "data"
    write_dump(root)
    fault(root)
    summary, output = tmp_path / "summary.json", tmp_path / "output"
    report = tmp_path / f"report.{command.ending}"
    files = ["--summary", str(summary), *(["--report", str(report)] if command.ending else [])]
    error: KafkaIndexError | None = None
    with without_override() if fault is forbid_log else nullcontext():
        done = run_here(name, "--input", root, *command.options(str(output)), *files)
        if output.exists():
            # Conclusions have the name of the output.
            output.rename(tmp_path / "first")
        try:
            result = command.function(root, str(output))
        except KafkaIndexError as raised:
            error = raised
    ended = json.loads(_WRITTEN.sub("", summary.read_text()))
    printed = _WRITTEN.sub("", done.stdout + done.stderr)

    code = ExitCode.DONE if fault.__name__ in command.unaffected else FAULTS[fault]
    assert done.returncode == ended["exit_code"] == code, done.stdout + done.stderr
    if error is not None:
        assert ended["error"] == str(error)
        assert str(error) in done.stderr
        assert ExitCode.of_run(error) == done.returncode
        return
    _agree(result, printed, ended)
    assert result.outcome.exit_code == done.returncode
    if command.ending == "html":
        page = _WRITTEN.sub("", report.read_text())
        (shown,) = re.findall(r'<h1 id="verdict">(.*?)</h1>', page)
        assert html.unescape(shown) == result.conclusion.text
        assert result.next_command is None or html.escape(result.next_command) in page
        assert f'<header class="{SEVERITY[result.outcome]}"' in page


def _agree(result: Result, printed: str, ended: dict[str, Any]) -> None:
    """Compare the summary and the terminal with the result of the function, and its own texts."""
    conclusion = result.conclusion.text
    assert conclusion in printed.splitlines()
    following = f"next: {result.next_command}" if result.next_command else None
    assert [line for line in printed.splitlines() if line.startswith("next: ")] == (
        [following] if following else []
    )
    assert ended["next_command"] == result.next_command
    assert ended["conclusion"] == conclusion
    assert ended["outcome"] == result.outcome.value
    assert ended["counts"].items() >= dict(result.counts).items()
    assert ended["bytes"].items() >= dict(result.sizes_bytes).items()
    assert ended["missing_offsets"] == result.missing_offsets.as_object()
    assert conclusion.startswith(repr(result).splitlines()[0].partition(": ")[2])
    assert html.escape(conclusion) in result._repr_html_()
    if result.ok:
        result.raise_for_damage()
    else:
        with pytest.raises(KafkaIndexError, match=re.escape(conclusion)):
            result.raise_for_damage()
