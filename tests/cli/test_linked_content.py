"""No command quotes the content of a file of a dump that is a link to a private one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.support.campaign import combine_cases
from tests.support.command_line import Argument, run_here
from tests.support.registry_records import write_schema_next_to
from tests.support.restoring import copy_dump

CANARY = "canary-5309"
#: What a link may lead to: first lines, second lines, and later ones of every form are malformed.
CONTENTS = {
    "version": f"{CANARY}\n{CANARY}\n{CANARY}\n",
    "count": f"0\n{CANARY}\n{CANARY}\n",
    "entry": f"0\n1\n{CANARY}\n",
    "metadata": f"version: 0\n{CANARY}\n",
    "property": f"version=1\ncluster.id=x\nnode.id={CANARY}\n",
}
FILES = [
    "payments-0/leader-epoch-checkpoint",
    "payments-0/partition.metadata",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "meta.properties",
    ".kafka_cleanshutdown",
]
COMMANDS: dict[str, Callable[[Path, Path], list[Argument]]] = {
    "build": lambda dump, out: ["--input", dump, "--output", out / "a"],
    "lookup": lambda dump, _: [
        *("--logs", dump, "--topic", "payments", "--partition", 0, "--offset", 5),
        *("--upper-bound", "high-watermark"),
    ],
    "verify": lambda dump, out: ["--input", dump, "--report", out / "verify.json"],
    "predict": lambda dump, out: ["--input", dump, "--report", out / "predict.json"],
    "export": lambda dump, out: ["--input", dump, "--output", out / "b"],
    "cat": lambda dump, _: ["payments", "--input", dump, "--from", "2020-01-01"],
    "find": lambda dump, _: ["--input", dump, "--key", "x"],
    "rewrite": lambda dump, out: [
        *("--input", dump, "--output", out / "c", "--drop-where", "offset = 3"),
    ],
    "restore": lambda dump, out: ["--input", dump, "--output", out / "d"],
    "schemas": lambda dump, out: ["--input", dump, "--schemas", write_schema_next_to(out)],
    "metadata": lambda dump, _: [dump],
}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return copy_dump(tmp_path / "dump", "payments-0")


@pytest.mark.parametrize(
    ("case", "number"), combine_cases(product(COMMANDS, CONTENTS), range(3)), ids=str
)
def test_content_of_a_linked_file_is_not_printed(
    case: tuple[str, str], number: int, dump: Path, tmp_path: Path
) -> None:
    command, content = case
    private = tmp_path / "private"
    private.write_text(CONTENTS[content])
    out = tmp_path / "out"
    for name in FILES[number::3]:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        path = dump / name
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.symlink_to(private)

        given = [*COMMANDS[command](dump, out), "--summary", out / "summary.json", "--verbose"]
        # A broker follows links, and so does its prediction.
        given += [] if command == "predict" else ["--follow-links"]
        result = run_here(command, *given)

        shown = [result.stdout, result.stderr]
        shown += [file.read_text() for file in out.glob("*.json")]
        assert not [text for text in shown if CANARY in text], name
        path.unlink()
        if before is not None:
            path.write_bytes(before)


@pytest.mark.parametrize("is_partition", [False, True], ids=["log", "partition"])
@pytest.mark.parametrize("command", COMMANDS)
def test_content_of_a_linked_file_named_like_a_log_is_not_printed(
    command: str, dump: Path, tmp_path: Path, *, is_partition: bool
) -> None:
    """Logs and partitions that are links are followed as a broker does."""
    log, private = dump / "payments-0" / f"{532:020d}.log", tmp_path / "private"
    if is_partition:
        log.write_text(CANARY * 20)
        shutil.move(log.parent, private)
        log.parent.symlink_to(private)
    else:
        private.write_text(CANARY * 20)
        log.unlink()
        log.symlink_to(private)
    out = tmp_path / "out"
    out.mkdir()
    result = run_here(
        command, *COMMANDS[command](dump, out), "--summary", out / "summary.json", "--verbose"
    )
    shown = [result.stdout, result.stderr, *(file.read_text() for file in out.glob("*.json"))]
    assert not [text for text in shown if CANARY in text]
    # A lookup asks another log, and there is no log of metadata.
    assert result.returncode == {"lookup": 0, "metadata": 2}.get(command, 1), result.stderr


def test_content_of_a_malformed_regular_file_is_quoted(dump: Path) -> None:
    (dump / "log-start-offset-checkpoint").write_text(f"{CANARY}\n")
    assert CANARY in run_here("verify", "--input", dump).stdout
