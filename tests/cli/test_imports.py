"""The modules that short commands import: few, as imports take most of their time."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import DUMP, ROOT, environment, run_program
from tests.support.restoring import copy_dump

COMMANDS = ROOT / "kafka_index" / "commands"
LOG = next(DUMP.glob("app-logs-0/*.log"))
QUESTION = ("lookup", "--logs", DUMP, "--topic", "app-logs", "--partition", "0", "--offset", "1")
OURS = "kafka_index."
OTHER_COMMANDS = {f"commands.{path.parent.name}" for path in COMMANDS.glob("*/request.py")}
NOT_FOR_LOCAL_LOGS = (
    "commands.build.parquet",
    "core.cluster.merged_listing",
    "core.cluster.metadata.",
    "core.format.messages",
    "core.fs.object_store",
    "core.kernels.decompress",
    "core.logdir.paged_listing",
    "core.records.record_decoder",
    "core.schema.decode",
)
SLOW = ("pandas", "pyspark", "rich", "obstore", "hdfs_native")


@cache
def imported(*arguments: str | Path) -> frozenset[str]:
    """The modules that a command has imported when it is done; of each command line, once."""
    program = (
        "import sys; from kafka_index.cli import main; code = main();"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    result = run_program(sys.executable, "-c", program, *arguments)
    assert result.returncode == 0, result.stderr
    return frozenset(result.stderr.split())


def packages(*arguments: str | Path) -> frozenset[str]:
    """The packages of this package, such as ``core.fs``, that a command imports."""
    names = (name.split(".")[1:3] for name in imported(*arguments) if name.startswith(OURS))
    return frozenset(".".join(name) for name in names)


@pytest.mark.parametrize(
    "command",
    [QUESTION, ("dump", LOG), ("dump", "--records", LOG)],
    ids=["lookup", "dump", "records"],
)
def test_short_command_imports_no_library_that_it_does_not_need(
    command: tuple[str | Path, ...],
) -> None:
    assert imported(*command).isdisjoint(SLOW)


def test_single_lookup_imports_no_other_command_and_no_spark() -> None:
    result = packages(*QUESTION)
    assert "commands.lookup" in result
    assert result.isdisjoint({*OTHER_COMMANDS - {"commands.lookup"}, "core.startup", "spark"})


def test_metadata_table_imports_no_other_command_and_no_spark() -> None:
    result = packages("metadata", DUMP, "--what", "topics")
    assert "commands.metadata" in result
    assert result.isdisjoint({*OTHER_COMMANDS - {"commands.metadata"}, "core.startup", "spark"})


@pytest.mark.parametrize(
    "command",
    [
        ("build", "--output", "OUT"),
        ("lookup", "--topic", "payments", "--partition", "0", "--offset", "5"),
    ],
    ids=["build", "lookup"],
)
def test_local_logs_are_read_without_modules_for_other_inputs(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Parquet, stores, remote segments, metadata logs and records each have their own modules."""
    data = copy_dump(tmp_path / "data", "payments-0")
    arguments = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    result = [name for name in imported(*arguments, "--input", data) if name.startswith(OURS)]
    for name in NOT_FOR_LOCAL_LOGS:
        assert not [one for one in result if one.startswith(f"{OURS}{name}")], name


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
    result = run_program(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "module", sorted(path.parent.name for path in COMMANDS.glob("*/request.py"))
)
def test_request_is_imported_without_numpy_and_pyarrow(module: str) -> None:
    program = (
        f"import sys, kafka_index.commands.{module}.request;"
        "sys.exit(not {'click', 'numba', 'numpy', 'pyarrow'}.isdisjoint(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, env=environment())
    assert result.returncode == 0
