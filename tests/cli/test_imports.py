"""The modules that short commands import: few, as imports take most of their time."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import DUMP, ROOT, environment, run_program

COMMANDS = ROOT / "kafka_index" / "commands"
LOG = next(DUMP.glob("app-logs-0/*.log"))
QUESTION = ("lookup", "--logs", DUMP, "--topic", "app-logs", "--partition", "0", "--offset", "1")
SLOW = ("pandas", "pyspark", "rich", "obstore", "hdfs_native")


@cache
def imported(*arguments: str | Path) -> frozenset[str]:
    """The modules that a command has imported when it is done; of each command line, once."""
    program = (
        "import sys; from kafka_index.cli import main; code = main();"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = run_program(sys.executable, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stderr.split())


def rooms(*arguments: str | Path) -> frozenset[str]:
    """The rooms of this package that a command imports."""
    names = (name.split(".") for name in imported(*arguments))
    return frozenset(name[1] for name in names if name[0] == "kafka_index" and len(name) > 1)


@pytest.mark.parametrize(
    "command",
    [QUESTION, ("dump", LOG), ("dump", "--records", LOG)],
    ids=["lookup", "dump", "records"],
)
def test_short_command_imports_no_library_that_it_does_not_need(
    command: tuple[str | Path, ...],
) -> None:
    assert imported(*command).isdisjoint(SLOW)


def test_single_lookup_imports_neither_build_nor_metadata() -> None:
    assert {"build", "metadata", "growing", "spark", "startup", "tables"}.isdisjoint(
        rooms(*QUESTION)
    )


def test_metadata_command_does_not_import_lookup() -> None:
    table = rooms("metadata", DUMP, "--what", "topics")
    assert {"build", "growing", "lookup", "spark", "startup", "tables"}.isdisjoint(table)


def test_cached_kernels_are_loaded_without_the_compiler() -> None:
    imported(*QUESTION)
    again = imported.__wrapped__(*QUESTION)
    assert again.isdisjoint({"numba.cpython.unicode", "pyarrow.parquet"})


def test_record_dump_imports_metadata_only_for_internal_topics() -> None:
    codecs = "kafka_index.core.cluster.metadata.decoding"
    own = next(DUMP.glob("__consumer_offsets-0/*.log"))
    assert codecs not in imported("dump", "--records", LOG)
    assert codecs in imported("dump", "--records", own)


def test_run_on_threads_starts_no_spark_and_leaves_pandas_importable(tmp_path: Path) -> None:
    program = (
        "import sys; from kafka_index.cli import main;"
        f"assert main(['build', '--input', {str(DUMP)!r}, '--output', {str(tmp_path)!r}]) == 0;"
        "assert 'pyspark' not in sys.modules;"
        "import pandas, pyarrow; pyarrow.table({'a': [1]}).to_pandas()"
    )
    done = run_program(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", sorted(path.parent.name for path in COMMANDS.glob("*/request.py"))
)
def test_request_is_imported_without_numpy_and_pyarrow(module: str) -> None:
    program = (
        f"import sys, kafka_index.commands.{module}.request;"
        "sys.exit(not {'click', 'numba', 'numpy', 'pyarrow'}.isdisjoint(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, env=environment())
    assert done.returncode == 0
