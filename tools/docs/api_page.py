"""Write the names in docs/api.md from their docstrings, so that the page reads in any viewer.

``python tools/docs/api_page.py`` writes them, after a mark in the page; a test compares them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import kafka_index
import kafka_index.spark

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
_MARK = "<!-- What follows is written from the docstrings"
_SECTION = re.compile(r"^(?P<title>[A-Z][A-Za-z ]+)\n-{3,}\n", re.MULTILINE)
_WIDTH = 100
_ROLE = re.compile(r"(?<!`)`([A-Za-z_.]+)`(?!`)")


def groups() -> Iterator[tuple[str, list[str]]]:
    """Yield the groups of the names in the docstring of the package, each with its names."""
    public = {name for name in dir(kafka_index) if not name.startswith("_")}
    seen = set()
    for block in (inspect.getdoc(kafka_index) or "").split("\n\n"):
        title, _, rest = block.partition("\n")
        if rest.lstrip().startswith(">>>"):
            continue
        words = dict.fromkeys(re.findall(r"\w+", rest))
        names = [word for word in words if word in public and word not in seen]
        seen.update(names)
        if names and ":" in title:
            yield title.partition(":")[0], names


def page() -> str:
    """Return the text of the page."""
    head, mark, rest = PAGE.read_text(encoding="utf-8").partition(_MARK)
    parts = [f"{head}{mark}{rest.partition(chr(10))[0]}\n"]
    for title, names in groups():
        parts += _section(title, names, kafka_index)
    spark = kafka_index.spark
    functions = [name for name in spark.__all__ if inspect.isfunction(getattr(spark, name))]
    parts += _section("Spark", functions, spark)
    return "\n".join(parts)


def _section(title: str, names: Sequence[str], module: ModuleType) -> Iterator[str]:
    place = module.__name__
    links = [f"[`{name}`](#{f'{place}.{name}'.replace('.', '').lower()})" for name in names]
    yield f"## {title}\n\n{', '.join(links)}\n"
    for name in names:
        yield _entry(f"{place}.{name}", name, getattr(module, name))


def _entry(path: str, name: str, value: Any) -> str:
    docstring = value.__doc__
    if not docstring:
        message = f"{path} is exported and has no docstring"
        raise ValueError(message)
    docstring = inspect.cleandoc(docstring)
    lines = [f"### {path}", ""]
    if isinstance(value, type) and issubclass(value, Enum):
        lines += [_text(docstring), ""]
        lines += [f"- `{member.value}`" for member in value]
        return "\n".join([*lines, ""])
    lines += ["```python", _signature(name, value), "```", "", _text(docstring)]
    if isinstance(value, type):
        lines += list(_members(value))
    return "\n".join([*lines, ""])


def _signature(name: str, value: Callable[..., object], width: int = _WIDTH) -> str:
    """Return the signature of a function or class; beyond a width, with a line per parameter."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return name
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    shown, has_star = [], False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            shown.append("*")
        has_star = each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        shown.append(_parameter(each))
    end = ""
    if signature.return_annotation not in (inspect.Signature.empty, None, "None"):
        end = f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){end}"])


def _parameter(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    shown = repr(default.value if isinstance(default, Enum) else default)
    if " object at " in shown or "<factory>" in shown or "function" in shown:
        shown = "..."
    return f"{text} = {shown}" if ":" in text else f"{text}={shown}"


def _annotation(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\"")
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _members(kind: type) -> Iterator[str]:
    """Yield the public methods and properties of a class, a line each."""
    rows = []
    homes = [base for base in kind.__mro__ if base.__module__.startswith("kafka_index")]
    names = dict.fromkeys(name for base in homes for name in vars(base))
    for name in names:
        member = inspect.getattr_static(kind, name)
        value = getattr(kind, name)
        documented = inspect.getdoc(member) or ""
        if name.startswith("_") or not documented:
            continue
        if isinstance(member, property):
            shown = name
        elif inspect.isroutine(value):
            shown = _signature(name, value, sys.maxsize)
        else:
            continue
        first = " ".join(documented.split("\n\n")[0].split())
        rows.append(f"- `{shown}`: {_inline(first)}")
    if rows:
        yield from ("", "**Members**", "", *rows)


def _text(docstring: str) -> str:
    """Return a docstring of numpydoc as Markdown."""
    parts = _SECTION.split(docstring)
    lines = [_inline(parts[0].strip())]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += ["", f"**{title}**", ""]
        lines += _examples(body) if title == "Examples" else _entries(title, body)
    return "\n".join(lines)


def _entries(title: str, body: str) -> list[str]:
    if title in ("Notes", "References"):
        return [_inline(body.strip())]
    rows = []
    for chunk in re.split(r"\n(?=\S)", body.strip()):
        head, _, rest = chunk.partition("\n")
        text = " ".join(rest.split())
        rows.append(f"- `{head.strip()}`" + (f": {_inline(text)}" if text else ""))
    return rows


def _examples(body: str) -> list[str]:
    return ["```pycon", body.strip(), "```"]


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text.replace("``", "`"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
