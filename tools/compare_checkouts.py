"""Compare what two checkouts of kafka-index write, byte for byte: before and after a refactoring.

Runs the commands that write over ``examples/dump``, on threads and on Spark, once with each
checkout, and prints a line per file that differs: ``python tools/compare_checkouts.py BEFORE``.
Run ids and times of a run are no difference: JSON documents are compared without them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
_QUERIES = """topic,partition,offset,timestamp
payments,0,1,1
payments,0,100000000,1800000000000
orders.eu-west,2,17,1767225600000
page-views,1,5,ms:5
nowhere,0,0,1
"""
_KEYS = ("key-27820", "key-47685", "key-48375")
#: The commands, by name; {dump}, {config}, {queries} and {out} are filled in.
COMMANDS = {
    "build": "build --input {dump} --output {out}/o --config {config} --report {out}/report.csv",
    "lookup": "lookup --logs {dump} --queries {queries} --by offset --output {out}/answers.csv",
    "times": "lookup --logs {dump} --queries {queries} --by timestamp --output {out}/answers.csv",
    "verify": "verify --input {dump} --config {config} --report {out}/report.csv",
    "export": "export --input {dump} --output {out}/exported",
    "import": "import --input {out}/../export/exported --output {out}/imported",
    "rewrite": "rewrite --input {dump} --output {out}/o --topics payments --drop-keys {keys}",
    "restore": "restore --input {dump} --output {out}/restored --config {config}",
    "predict": "predict --input {dump} --config {config} --report {out}/report.csv",
    "find": "find --input {dump} --key-regex . --json --topics payments",
    "cat": "cat payments --input {dump} --format json --by-time",
    "metadata": "metadata {dump} --json",
}
_ON_SPARK = ("build", "lookup", "verify", "export", "rewrite", "restore")
_PASSING = re.compile(
    r"run_id|version|seconds|elapsed|started|finished|_at$|time$|host|pid|bytes_per"
)
_TIMES = re.compile(rb"\(?(?:\d+ h \d+ min|(?:\d+ min )?[\d.,]+ ?(?:s|ms|[kMG]?B/s|/s)\b)\)?.*")


def main() -> int:
    """Run both checkouts, and return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=HERE)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--threads-only", action="store_true")
    arguments = parser.parse_args()
    names = arguments.commands.split(",")
    differences = 0
    say = partial(print, flush=True)
    with tempfile.TemporaryDirectory(prefix="kafka-index-compare-") as folder:
        for engine in ("threads",) if arguments.threads_only else ("threads", "spark"):
            roots = [
                _run_all(checkout.resolve(), Path(folder) / side / engine, names, engine)
                for side, checkout in (("before", arguments.before), ("after", arguments.after))
            ]
            found = [dict(_contents(root)) for root in roots]
            for name in sorted(found[0].keys() | found[1].keys()):
                if found[0].get(name) != found[1].get(name):
                    differences += 1
                    sides = " ".join("has" if name in side else "lacks" for side in found)
                    say(f"{engine}: {name}: {'differs' if sides == 'has has' else sides}")
            say(f"{engine}: {len(found[0]):,} files compared")
    say("no difference" if not differences else f"{differences:,} differences")
    return 1 if differences else 0


def _run_all(checkout: Path, folder: Path, names: list[str], engine: str) -> Path:
    """Run the commands of one checkout, and return the folder of what they wrote."""
    folder.mkdir(parents=True)
    dump, config = HERE / "examples" / "dump", HERE / "examples" / "dump.properties"
    queries, keys = folder.parent / "queries.csv", folder.parent / "keys.txt"
    queries.write_text(_QUERIES, encoding="utf-8")
    keys.write_text("\n".join(_KEYS), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    for name in names:
        if engine == "spark" and name not in _ON_SPARK:
            continue
        out = folder / name
        out.mkdir()
        words = COMMANDS[name].format(dump=dump, config=config, queries=queries, keys=keys, out=out)
        if engine == "spark":
            words += " --engine spark --master local[2]"
        done = subprocess.run(
            [sys.executable, "-m", "kafka_index", *words.split()],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout.replace(str(folder), "")
        (out / "stdout.txt").write_text(f"exit {done.returncode}\n{said}", encoding="utf-8")
        if done.returncode not in {0, 1}:
            sys.stderr.write(f"{checkout}: {words}\n{done.stderr}\n")
    return folder


def _contents(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each file's name below a folder and the digest of its content."""
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        if ".kafka-index" in path.name:
            continue  # what a run remembers of its inputs: times and identities of files
        content = path.read_bytes().replace(str(root.parent).encode(), b"")
        if path.suffix == ".json":
            content = json.dumps(_kept(json.loads(content)), sort_keys=True).encode()
        elif path.name == "report.csv":
            rows = _kept(list(csv.DictReader(content.decode().splitlines())))
            content = json.dumps(sorted(rows, key=repr)).encode()
        elif path.name == "stdout.txt":
            content = _TIMES.sub(b"", content)
        yield str(path.relative_to(root)), sha256(content).hexdigest()


def _kept(value: Any) -> Any:
    """Return a JSON value without what changes from run to run."""
    if isinstance(value, dict):
        return {name: _kept(each) for name, each in value.items() if not _PASSING.search(name)}
    return [_kept(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
