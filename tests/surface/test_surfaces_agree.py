"""Each command and each kind of fault: terminal, summary, page, exit code and Python agree."""

from __future__ import annotations

import html
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index import KafkaIndexError, Result, RunOutcome
from kafka_index.cli.dump_output import DumpPrinter
from kafka_index.cli.exit_status import ExitCode
from kafka_index.commands.cat.request import CAT
from kafka_index.commands.dump.request import DUMP
from kafka_index.core.job.request import call
from tests.support.child_processes import enforce_permissions
from tests.support.command_line import run_here
from tests.support.damaged_dumps import (
    damage_middle,
    garble_log_starts,
    leave_intact,
    log_path,
    make_log_a_folder,
    remove_segment,
    write_dump,
)
from tests.support.registry_records import write_schema_next_to

QUERIES = pa.table({"topic": ["orders"] * 36, "partition": [0] * 36, "offset": range(36)})
#: The answers that a lookup writes, and the function does not; the time of a backup.
_VARYING = re.compile(r"; answers in \S+?\.csv|\d{8}T\d{6}\.\d{3}Z")
SEVERITY = {RunOutcome.DONE: "good", RunOutcome.ENVIRONMENT: "notable", RunOutcome.DAMAGE: "bad"}


def put_pipe_for_log(root: Path) -> None:
    log = log_path(root, 12)
    log.unlink()
    os.mkfifo(log)


def forbid_log(root: Path) -> None:
    log_path(root, 12).chmod(0)


#: Each kind of fault in log directories, and the exit code of every command.
FAULTS: dict[Callable[[Path], None], ExitCode] = {
    leave_intact: ExitCode.DONE,
    put_pipe_for_log: ExitCode.DAMAGE,
    make_log_a_folder: ExitCode.DAMAGE,
    damage_middle: ExitCode.DAMAGE,
    remove_segment: ExitCode.DAMAGE,
    garble_log_starts: ExitCode.DAMAGE,
    forbid_log: ExitCode.ENVIRONMENT,
}


class Command(NamedTuple):
    """The options of a command besides its input, and its function; both have an output folder.

    `ending` is that of its report, none without one. `unaffected` are faults that are none for it.
    `inputs` are the arguments for an input, which `write` writes.
    """

    options: Callable[[str], list[str]]
    function: Callable[[Path, str], Result]
    ending: str = "html"
    unaffected: tuple[Callable[[Path], None], ...] = ()
    inputs: Callable[[Path], list[str]] = lambda root: ["--input", str(root)]
    write: Callable[[Path], None] = write_dump
    faults: Mapping[Callable[[Path], None], ExitCode] = FAULTS


def find(root: Path, _: str) -> Result:
    records = kafka_index.find_records(root, key="k1")
    records.to_arrow()
    return records


def cat(root: Path, _: str) -> Result:
    read: Result = call(CAT, {"topic": "orders", "paths": root})
    read.to_arrow()
    return read


def dump(root: Path, _: str) -> Result:
    dumped = call(DUMP, {"files": [root]})
    printer = DumpPrinter(io.StringIO(), as_json=False, is_wide=False, keys=None, values=None)
    dumped.print_rows(printer)
    result: Result = dumped
    return result


def stop_broker(root: Path) -> None:
    """Write a dump of a broker that was shut down: a backup waits for no checkpoint."""
    write_dump(root)
    (root / ".kafka_cleanshutdown").write_text("{}")


TABLE = "records.parquet"


def write_records(root: Path) -> None:
    root.mkdir()
    rows = {"topic": ["orders"] * 3, "partition": [0] * 3, "offset": range(3), "value": [b"v"] * 3}
    pq.write_table(pa.table(rows), root / TABLE)


def leave_table(root: Path) -> None:
    assert (root / TABLE).exists()


def cut_table(root: Path) -> None:
    (root / TABLE).write_bytes((root / TABLE).read_bytes()[:-9])


def forbid_table(root: Path) -> None:
    (root / TABLE).chmod(0)


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


#: A command has a row here once its surfaces are derived from its request and result.
COMMANDS = {
    # Missing offsets are no damage of the logs that are there.
    "backup": Command(
        lambda output: ["--output", output],
        kafka_index.backup_broker,
        "parquet",
        unaffected=(remove_segment,),
        write=stop_broker,
    ),
    "build": Command(
        lambda output: ["--output", output],
        kafka_index.build_indexes,
        unaffected=(remove_segment,),
    ),
    "cat": Command(lambda _: [], cat, "", inputs=lambda root: ["orders", "--input", str(root)]),
    "dump": Command(lambda _: [], dump, "", (remove_segment,), lambda root: [str(root)]),
    "export": Command(
        lambda output: ["--output", output],
        kafka_index.export_records,
        "parquet",
    ),
    "find": Command(lambda _: ["--key", "k1"], find, ""),
    "import": Command(
        lambda output: ["--output", output],
        kafka_index.import_records,
        "",
        write=write_records,
        faults={
            leave_table: ExitCode.DONE,
            cut_table: ExitCode.USAGE,
            forbid_table: ExitCode.ENVIRONMENT,
        },
    ),
    "lookup": Command(look_up, lookup, unaffected=(remove_segment,)),
    # Only the topics of Kafka itself are read.
    "metadata": Command(
        lambda _: [],
        lambda root, _: kafka_index.read_metadata(root),
        "",
        (damage_middle, remove_segment, forbid_log),
        lambda root: [str(root)],
    ),
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
        lambda output: ["--schemas", str(write_schema_next_to(Path(output)))],
        lambda root, output: kafka_index.read_schemas(
            root, schemas=write_schema_next_to(Path(output))
        ),
        "",
    ),
    # Without --sizes checksums are not verified, and `damage_middle` is not found.
    "stats": Command(
        lambda _: ["--sizes"], lambda root, _: kafka_index.read_stats(root, sizes=True)
    ),
    "verify": Command(lambda _: [], lambda root, _: kafka_index.verify(root)),
}


CELLS = [(name, fault) for name, command in COMMANDS.items() for fault in command.faults]


@pytest.mark.parametrize(
    ("name", "fault"), CELLS, ids=[f"{name}-{fault.__name__}" for name, fault in CELLS]
)
def test_fault_has_same_conclusion_on_every_surface(
    tmp_path: Path, name: str, fault: Callable[[Path], None]
) -> None:
    command, root = COMMANDS[name], tmp_path / "data"
    command.write(root)
    fault(root)
    summary, output = tmp_path / "summary.json", tmp_path / "output"
    report = tmp_path / f"report.{command.ending}"
    files = ["--summary", str(summary), *(["--report", str(report)] if command.ending else [])]
    error: KafkaIndexError | None = None
    with enforce_permissions() if fault in (forbid_log, forbid_table) else nullcontext():
        completed = run_here(name, *command.inputs(root), *command.options(str(output)), *files)
        if output.exists():
            # Conclusions have the name of the output.
            output.rename(tmp_path / "first")
        try:
            result = command.function(root, str(output))
        except KafkaIndexError as raised:
            error = raised
    ended = json.loads(_VARYING.sub("", summary.read_text()))
    printed = _VARYING.sub("", completed.stdout + completed.stderr)

    code = ExitCode.DONE if fault in command.unaffected else command.faults[fault]
    assert completed.returncode == ended["exit_code"] == code, completed.stdout + completed.stderr
    if error is not None:
        assert ended["error"] == str(error)
        assert str(error) in completed.stderr
        assert ExitCode.from_error(error) == completed.returncode
        return
    _agree(result, printed, ended)
    assert result.outcome.exit_code == completed.returncode
    if command.ending == "html":
        page = _VARYING.sub("", report.read_text())
        (shown,) = re.findall(r'<h1 id="verdict">(.*?)</h1>', page)
        assert html.unescape(shown) == result.conclusion.text
        assert result.next_command is None or html.escape(result.next_command) in page
        assert f'<header class="{SEVERITY[result.outcome]}"' in page


def _agree(result: Result, printed: str, ended: dict[str, Any]) -> None:
    """Compare the summary and the terminal with the result of the function, and its own texts."""
    conclusion = _VARYING.sub("", result.conclusion.text)
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
    shown = _VARYING.sub("", repr(result).splitlines()[0])
    assert conclusion.startswith(shown.partition(": ")[2])
    assert html.escape(conclusion) in _VARYING.sub("", result._repr_html_())
    if result.ok:
        result.raise_for_damage()
    else:
        with pytest.raises(KafkaIndexError, match=re.escape(result.conclusion.text)):
            result.raise_for_damage()
