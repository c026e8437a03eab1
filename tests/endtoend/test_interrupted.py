"""Ctrl-C at any moment of any command is one line and an exit code: in imports and in the work.

The process sends itself the signal after a random number of calls, so that the moment does not
depend on the speed or load of the machine.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

import kafka_index
from kafka_index.cli.app import COMMANDS
from tests.support.campaign import sample_size
from tests.support.command_line import DUMP, ROOT, run_program

#: Counts from the first line of the command line on. A parent may have ignored the signal.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
moment, is_begun = int(sys.argv.pop(1)), False
left = moment

def count(frame, event, argument):
    global is_begun, left
    is_begun = is_begun or frame.f_code.co_filename.endswith("kafka_index/cli/__init__.py")
    left -= is_begun
    if not left:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(count)
from kafka_index.cli import main
code = main()
sys.setprofile(None)
print(f"calls: {moment - left}")
sys.exit(code)
"""
#: More than any of the commands has.
MANY_CALLS = 3_000_000
LOG = DUMP / "payments-0" / "00000000000000000000.log"
LINES = {
    "backup": f"backup --input {DUMP} --output OUT",
    "backups": "backups list REPOSITORY",
    "build": f"build --input {DUMP} --output OUT",
    "cat": f"cat payments --input {DUMP} -n 100",
    "dump": f"dump --records {LOG}",
    "export": f"export --input {DUMP} --topics payments --output OUT",
    "find": f"find --input {DUMP} --topics payments --key-regex 7$",
    "help": "help lookup",
    "import": f"import --input {ROOT}/examples/kcat.json --layout kcat --output OUT",
    "lookup": f"lookup --input {DUMP} --topic payments --at 2026-11-21T07:25:19Z",
    "lookup of one": f"lookup --input {DUMP} --topic payments --partition 0 --offset 600",
    "lookup of queries": f"lookup --input {DUMP} --queries {ROOT}/examples/queries.csv "
    "--by offset --output OUT",
    "metadata": f"metadata {DUMP} --what lag",
    "predict": f"predict --input {DUMP}",
    "restore": f"restore --input {DUMP} --topics payments --output OUT",
    "rewrite": f"rewrite --input {DUMP} --topics payments --drop-keys KEYS --output OUT",
    "schemas": f"schemas --input {ROOT}/examples/typed --output OUT",
    "stats": f"stats --input {DUMP} --keys 3",
    "verify": f"verify --input {DUMP}",
    "warm-up": "warm-up",
    "help of one": "restore --help",
}


def test_interrupt_tests_cover_every_command() -> None:
    assert {line.split()[0] for line in LINES.values()} == set(COMMANDS)


def run(name: str, moment: int, folder: Path) -> subprocess.CompletedProcess[str]:
    keys = folder / "keys"
    keys.write_text("key-27820\n")
    out = folder / f"out-{moment}"
    line = LINES[name].replace("OUT", str(out)).replace("KEYS", str(keys))
    if "REPOSITORY" in line:
        repository = folder / "repository"
        kafka_index.backup_broker(DUMP, repository)
        line = line.replace("REPOSITORY", str(repository))
    return run_program(sys.executable, "-c", PROGRAM, str(moment), *line.split())


@pytest.mark.parametrize("seed", range(sample_size(50, one_in=50)))
@pytest.mark.parametrize("name", LINES)
def test_interrupt_at_any_time_prints_one_line(name: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{name} {seed}")
    # Early moments are as likely as late ones.
    moment = round(math.exp(draw.uniform(0, math.log(MANY_CALLS))))
    result = run(name, moment, tmp_path)
    if not result.returncode:
        calls = int(result.stdout.rpartition("calls: ")[2])
        assert calls < moment
        # The number of calls differs a little from run to run.
        moment = draw.randrange(1, calls * 9 // 10)
        result = run(name, moment, tmp_path)
    assert result.returncode == 130, (moment, result.stderr)
    lines = result.stderr.splitlines()
    # Progress and notices may come before it.
    assert [line for line in lines if "rror" in line or "xception" in line] == lines[-1:], moment
    assert lines[-1].startswith("kafka-index: error: interrupted")


#: A finalizer, in which exceptions are lost, while the records are read.
LOST = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def __del__(self):
        os.kill(os.getpid(), signal.SIG{word})

class Interrupts:
    def find_spec(name, path=None, target=None):
        if name == "kafka_index.commands.find.result":
            Interrupting()
sys.meta_path.insert(0, Interrupts)
from kafka_index.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("word", "code", "said"), [("INT", 130, "interrupted"), ("TERM", 143, "terminated")]
)
def test_signal_lost_in_a_finalizer_ends_the_run(word: str, code: int, said: str) -> None:
    result = run_program(sys.executable, "-c", LOST.replace("{word}", word), *LINES["find"].split())
    assert (result.returncode, result.stderr) == (code, f"kafka-index: error: {said}\n")


#: Ctrl-C when the run is over, while the interpreter ends.
AFTERWARDS = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
from kafka_index.cli import main
sys.exit(main())
"""


def test_interrupt_after_the_run_prints_nothing() -> None:
    result = run_program(sys.executable, "-c", AFTERWARDS, "help", "lookup")
    assert result.stderr == ""
    assert result.stdout == (ROOT / "docs" / "lookup.md").read_text(encoding="utf-8")


#: Ctrl-C in the middle of what LLVM asks numba for, where an exception is lost and code incomplete.
IN_LLVM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from kafka_index.cli import main
from numba.core.codegen import JITCodeLibrary
whole = JITCodeLibrary._object_getbuffer_hook.__func__

def interrupted(kind, module):
    libraries = [each for name, each in vars(module).items() if name.endswith("__library")]
    if any(getattr(each, "_compiled_object", None) for each in libraries):
        os.kill(os.getpid(), signal.SIGINT)
    return whole(kind, module)

JITCodeLibrary._object_getbuffer_hook = classmethod(interrupted)
sys.exit(main())
"""


def test_interrupt_while_a_kernel_is_loaded_waits_for_its_code() -> None:
    result = run_program(sys.executable, "-c", IN_LLVM, *LINES["dump"].split())
    assert (result.returncode, result.stderr) == (130, "kafka-index: error: interrupted\n")
