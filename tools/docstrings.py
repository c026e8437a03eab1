"""Check English, as far as patterns can: docstrings, comments, help texts and pages.

The subject comes first: a docstring that opens with a question word or with "As", and a sentence
that opens with "Of a ..., ", make a reader wait for the noun. A pronoun before a relative clause
("those that") has no noun at all. Three relative words in one clause are two too many. A function
whose docstring opens with "Whether" returns a boolean.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kafka_index", "pyspark_kafka_log", "jobs", "tools", "examples", "benchmarks", "tests")
#: Written from docstrings.
_COPIES = ("docs/api.md",)

_OPENING = re.compile(r"(?:What|Where|How|Which|As|Who|Whom|When|Why|Of)\b")
_WHETHER = re.compile(r"(?:Return |Yield )?[Ww]hether\b")
_RELATIVE = r"(?:that|which|who|whom|whose|what)\b"
_SENTENCES = (
    (
        re.compile(r"(?:^|[.;:] )Of [^.,;:()]*, "),
        "in front: begin with the subject",
    ),
    (
        re.compile(
            rf"\b(?:[Tt]hose|[Oo]nes?) {_RELATIVE}|\b[Tt]hat (?:which|who)\b"
            r"|\b[Ww]hat (?:there is|is there)\b"
        ),
        "without a noun: name the thing",
    ),
    (
        re.compile(
            rf"\b{_RELATIVE}" + rf"(?: (?!and\b|or\b|but\b)[\w`'.-]+){{1,4}} {_RELATIVE}" * 2
        ),
        "nested: make two sentences",
    ),
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```|``[^`]*``|\"[^\"\n]*\"", re.MULTILINE | re.DOTALL)


def faults(text: str) -> Iterator[str]:
    """Yield the faults of a docstring."""
    line = " ".join(text.split())
    if _OPENING.match(line):
        yield f"opens with {line.split()[0]!r}: name the thing"
    yield from sentence_faults(text)


def sentence_faults(text: str) -> Iterator[str]:
    """Yield the faults of any text: its sentences count, and no quotation or code."""
    line = " ".join(_CODE.sub("...", text).split())
    for pattern, reason in _SENTENCES:
        for found in pattern.finditer(line):
            yield f"has {found[0].strip('.;: ')!r} {reason}"


def check(path: Path) -> Iterator[str]:
    """Yield the faults of a module or a page, each with its place."""
    place = path.relative_to(ROOT)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for line, paragraph in _paragraphs(text):
            yield from (f"{place}:{line}: page {fault}" for fault in sentence_faults(paragraph))
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            docstring = ast.get_docstring(node) or ""
            found = [*faults(docstring), *_promises(node, docstring)]
            line = getattr(node, "lineno", 1)
            yield from (f"{place}:{line}: docstring {fault}" for fault in found)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            help_text = "".join(
                str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)
            )
            yield from (
                f"{place}:{node.lineno}: help {fault}" for fault in sentence_faults(help_text)
            )
    for line, comment in _comments(text):
        yield from (f"{place}:{line}: comment {fault}" for fault in sentence_faults(comment))


def check_all() -> list[str]:
    """Return the faults of all packages and pages."""
    modules = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    pages = (
        path
        for path in [ROOT / "README.md", *sorted(ROOT.glob("[de]*/*.md"))]
        if path.relative_to(ROOT).as_posix() not in _COPIES
    )
    return [fault for path in (*modules, *pages) for fault in check(path)]


def _promises(node: ast.AST, docstring: str) -> Iterator[str]:
    """Yield the fault of a function that says "whether" and returns no boolean."""
    returns = ast.unparse(node.returns) if isinstance(node, _FUNCTIONS) and node.returns else ""
    is_boolean = not returns or any(each in returns for each in ("bool", "Flags", "Any"))
    if _WHETHER.match(docstring) and not is_boolean:
        yield f"says 'whether' of {returns}: name the thing"


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module, lines below each other as one, with the first line."""
    found = [
        (token.start[0], token.string.lstrip("#: "))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    for _, block in groupby(enumerate(found), lambda each: each[1][0] - each[0]):
        lines = [each for _, each in block]
        yield lines[0][0], " ".join(comment for _, comment in lines)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and rows of a page, each with its line; no code."""
    code = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in re.finditer(r"(?:^(?!\s*$|    |\t).*\n?)+", code, re.MULTILINE):
        line = code.count("\n", 0, found.start()) + 1
        for part in re.split(r"\n(?=[|*-] )", found[0]):
            yield line, part.replace("|", ".")
            line += part.count("\n") + 1


if __name__ == "__main__":
    found = check_all()
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    sys.exit(bool(found))
