"""Wheels with machine code: where it fits nothing is compiled, elsewhere all is, as without it."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import kafka_index.core.kernels
from kafka_index.core.kernels.compile_cache import COMPILED_BY, LEVELS, compiled, usable_levels
from kafka_index.core.kernels.warm_up import warm_up
from tests.support.command_line import DUMP, ROOT
from tests.support.timeouts import TIMEOUT_SECONDS

pytestmark = [
    pytest.mark.xdist_group("wheel"),
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the wheel of the tests is for x86-64-v3"
    ),
]

#: Prints where the package is, what a program prints, and how many kernels were compiled.
COUNTED = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
{before}
import kafka_index
from kafka_index.core.kernels.compile_clock import compile_clock
{program}
print(kafka_index.__file__, compile_clock.count, sep="\\n")
"""
WARM_UP = "from kafka_index.core.kernels.warm_up import warm_up; warm_up()"
ONE_KERNEL = """
import numpy as np
from kafka_index.core.kernels.search import is_ascending
print(is_ascending(np.array([1, 2])), is_ascending(np.array([2, 1])))
"""
COMMANDS = """
from kafka_index.cli import main
for command in sys.argv[2:]:
    code = main(command.split("|"))
    assert not code, code
"""
_KERNEL = type(compiled(lambda: None))
_CONTEXT = ("kafka_index", "docs", "pyspark_kafka_log", "pyproject.toml", "README.md", "LICENSE")
#: None of LLVM's features but those of the first processors with 64 bits.
_OLD_CPU = "+64bit,+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with machine code for this Python, made as ``make package`` does."""
    folder = tmp_path_factory.mktemp("wheel")
    source, dist = folder / "source", folder / "dist"
    source.mkdir()
    for name in _CONTEXT:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "packaged-*")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist)
    subprocess.run([*pip, source], check=True, timeout=TIMEOUT_SECONDS)
    (pure,) = dist.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "tools.wheels.compiled", pure, "x86_64"],
        cwd=ROOT,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    (made,) = dist.glob("*manylinux*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of a new environment with the wheel, and with this one's libraries."""
    folder = wheel.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    subprocess.run(
        [*pip, "--no-index", wheel], env=_environment(), check=True, timeout=TIMEOUT_SECONDS
    )
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return python


def _environment() -> dict[str, str]:
    """Return this environment without what leads to this checkout, or to a cache of kernels."""
    dropped = ("PYTHON", "NUMBA_", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _run(
    python: Path, program: str, *arguments: str, before: str = "", **variables: str
) -> list[str]:
    """Run a program where no folder can keep anything; return the lines that it prints."""
    temporary = python.parents[1] / "temporary"
    temporary.mkdir(exist_ok=True)
    # Files in place of the folders for kernels, which not even root can write to.
    nowhere = temporary / f"kafka_index-{os.geteuid()}"
    nowhere.touch()
    counted = COUNTED.format(before=before, program=program)
    result = subprocess.run(
        [python, "-P", "-c", counted, temporary, *arguments],
        env={**_environment(), "HOME": str(nowhere / "home"), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def _copied(python: Path, target: Path) -> tuple[Path, dict[str, str]]:
    """Copy the installed package; return its folder, and the variables that let Python find it."""
    (installed,) = python.parents[1].glob("lib/python*/site-packages/kafka_index")
    folder = shutil.copytree(installed, target / "kafka_index")
    return folder, {"PYTHONPATH": str(target)}


def test_packaged_kernels_need_no_compilation_without_a_cache(python: Path) -> None:
    log = DUMP / "app-logs-0" / f"{0:020d}.log"
    commands = (
        f"lookup|--logs|{DUMP}|--topic|app-logs|--partition|0|--offset|1",
        f"dump|--records|{log}",
        f"verify|--input|{DUMP}|--quiet",
        "warm-up",
    )
    *printed, package, count = _run(python, COMMANDS, *commands)
    assert printed[0] == "app-logs-0, offset 1: found"
    assert printed[-1].endswith("the package contains their machine code")
    assert Path(package).is_relative_to(python.parents[1])
    assert count == "0"


def test_zip_for_executors_needs_no_compilation(python: Path, wheel: Path, tmp_path: Path) -> None:
    package = tmp_path / "shipped.zip"
    copying = "import shutil; from kafka_index.spark.session import package_file as file;"
    _run(python, f"{copying} shutil.copy(file(), sys.argv[2])", str(package))
    for path in (package, wheel.with_name("kafka_index.zip")):
        origin, count = _run(python, WARM_UP, PYTHONPATH=str(path))
        assert (Path(origin).is_relative_to(path), count) == (True, "0")


@pytest.mark.parametrize(
    ("before", "variables", "count"),
    [
        ("", {}, "0"),
        ("import numba; numba.__version__ = '0.0'", {}, "1"),
        ("import numba, numpy; numpy.__version__ = '0.0'", {}, "1"),
        ("import importlib.machinery as m; m.EXTENSION_SUFFIXES[0] = '.cpython-310.so'", {}, "1"),
        ("", {"NUMBA_CPU_FEATURES": _OLD_CPU, "NUMBA_CPU_NAME": "x86-64"}, "1"),
        ("", {"NUMBA_ENABLE_AVX": "0"}, "1"),
    ],
    ids=["as built", "other numba", "other numpy", "other Python", "old CPU", "without AVX"],
)
def test_packaged_code_of_another_platform_is_not_loaded(
    python: Path, before: str, variables: dict[str, str], count: str
) -> None:
    printed = _run(python, ONE_KERNEL, before=before, **variables)
    assert (printed[0], printed[-1]) == ("True False", count)


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (lambda content: content, "0"),
        (lambda content: content[:-1], "1"),
        (lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:], "1"),
        (lambda _content: b"", "1"),
    ],
    ids=["whole", "without its end", "changed", "empty"],
)
def test_damaged_packaged_code_is_not_loaded(
    python: Path, tmp_path: Path, damage: Callable[[bytes], bytes], count: str
) -> None:
    package, variables = _copied(python, tmp_path)
    for path in package.rglob("search.is_ascending-*.bin"):
        path.write_bytes(damage(path.read_bytes()))
    printed = _run(python, ONE_KERNEL, **variables)
    assert printed == ["True False", str(package / "__init__.py"), count]


@pytest.mark.parametrize(
    ("changed", "count"), [("core/kernels/memory.py", "1"), ("core/kernels/scan.py", "0")]
)
def test_packaged_code_of_other_sources_is_not_loaded(
    python: Path, tmp_path: Path, changed: str, count: str
) -> None:
    package, variables = _copied(python, tmp_path)
    with (package / changed).open("a") as source:
        source.write("# changed\n")
    assert _run(python, ONE_KERNEL, **variables)[-1] == count


def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "kafka_index"
    needed = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file()
        and path.suffix in (".py", ".js", ".css", ".html", ".properties", ".typed")
    }
    with zipfile.ZipFile(wheel) as archive:
        assert needed - set(archive.namelist()) == set()
    assert any(name.endswith(".js") for name in needed)


def test_pip_accepts_the_wheel_only_for_this_python(wheel: Path) -> None:
    *_, tags = parse_wheel_filename(wheel.name)
    assert tags <= set(sys_tags())
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (about,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    lines = files[f"{about}/WHEEL"].decode().splitlines()
    assert "Root-Is-Purelib: false" in lines
    assert {line for line in lines if line.startswith("Tag:")} == {f"Tag: {tag}" for tag in tags}
    rows = [row.split(",") for row in files[f"{about}/RECORD"].decode().splitlines()]
    assert sorted(name for name, _, _ in rows) == sorted(files)
    for name, digest, size in rows:
        if digest:
            decoded = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
            assert (digest, size) == (f"sha256={decoded.rstrip('=')}", str(len(files[name])))
    assert wheel.stat().st_size < 10_000_000


def test_packaged_extra_pins_the_libraries_that_compiled_the_kernels(python: Path) -> None:
    (about,) = python.parents[1].glob("lib/python*/site-packages/kafka_index-*.dist-info")
    needed = metadata.PathDistribution(about).requires or []
    pinned = {line.split(";")[0].strip() for line in needed if 'extra == "compiled"' in line}
    assert pinned == {f"{name}=={version}" for name, version in COMPILED_BY.items()}


def test_cpu_level_requires_all_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    needed = LEVELS["x86_64"]["x86-64-v3"]
    # The features of the level's definition (x86-64 psABI), by LLVM's names.
    assert {"avx2", "bmi2", "fma", "movbe", "lzcnt", "f16c", "popcnt"} <= needed
    assert usable_levels(",".join(f"+{name}" for name in needed)) == ("x86-64-v3",)
    for missing in needed:
        rest = [f"{'-' if name == missing else '+'}{name}" for name in needed]
        assert usable_levels(",".join(rest)) == ()


def test_warm_up_compiles_every_kernel_called_by_other_packages() -> None:
    warm_up()
    package = ROOT / "kafka_index"
    callers = [
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path.parent.name != "kernels"
    ]
    imported = set()
    for text in callers:
        for names in re.findall(
            r"from kafka_index\.core\.kernels\.\w+ import (\([^)]*\)|.*)", text
        ):
            imported |= set(re.findall(r"\w+", names))
        for module in re.findall(r"from kafka_index\.core\.kernels import (.*)", text):
            for name in re.findall(r"\w+", module):
                imported |= set(re.findall(rf"\b{name}\.(\w+)", text))
    kernels = dict(_kernels())
    assert len(imported & set(kernels)) > 20
    assert [name for name in imported & set(kernels) if not kernels[name].signatures] == []


def _kernels() -> Iterator[tuple[str, Any]]:
    for found in pkgutil.iter_modules(kafka_index.core.kernels.__path__):
        module = importlib.import_module(f"kafka_index.core.kernels.{found.name}")
        for name, value in vars(module).items():
            if isinstance(value, _KERNEL) and value.__module__ == module.__name__:
                yield name, value
