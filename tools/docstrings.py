"""Check the English of docstrings, as far as patterns can: how they open, and fronted "Of a ...".

A docstring names the thing or the action first. One that opens with a question word or with "As"
makes a reader wait for the noun; so does a sentence that opens with "Of a ..., ".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kafka_index", "pyspark_kafka_log", "jobs", "tools")

_OPENING = re.compile(r"(?:What|Where|How|Which|As|Who|Whom|When|Why|Of)\b")
_FRONTED = re.compile(r"(?:^|[.;:] )Of (?:an?|the|its|their|it|them|remote|local) [^.,;:]*, ")
# Headless pronouns in front of a relative clause: name the noun.
_HEADLESS = re.compile(r"(?:Return |Yield )?(?:[Tt]hat|[Tt]hose|[Oo]ne) (?:that|which|who)\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def faults(text: str) -> Iterator[str]:
    """Yield the faults of a docstring."""
    line = " ".join(text.split())
    if _OPENING.match(line):
        yield f"opens with {line.split()[0]!r}: name the thing"
    if _HEADLESS.match(line):
        yield "opens with a pronoun: name the thing"
    for found in _FRONTED.finditer(line):
        yield f"has {found[0].strip('.;: ')!r} in front: begin with the subject"


def check(path: Path) -> Iterator[str]:
    """Yield the faults of a module, each with its place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, _DOCUMENTED):
            line = getattr(node, "lineno", 1)
            for fault in faults(ast.get_docstring(node) or ""):
                yield f"{path.relative_to(ROOT)}:{line}: docstring {fault}"


def check_all() -> list[str]:
    """Return the faults of all packages."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [fault for path in paths for fault in check(path)]


if __name__ == "__main__":
    found = check_all()
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    sys.exit(bool(found))
