"""The image: built whole, and the steps that install this package, in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.airflow import needing_downloads
from tests.servers.image import Image, built_image
from tests.support.command_line import DUMP, ROOT
from tests.support.timeouts import TIMEOUT_SECONDS


def steps() -> list[str]:
    """The shell commands of the RUN lines, whole."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(r"^RUN (.*)$", text, re.MULTILINE)


def context(target: Path) -> Path:
    """Copy what .dockerignore lets into the image."""
    kept = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    ]
    target.mkdir()
    for name in kept:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy2(source, target / name)
    return target


def test_image_build_steps_install_a_working_command(tmp_path: Path) -> None:
    needing_downloads("the image's environment")
    places = {"/src": str(context(tmp_path / "src")), "/wheels": str(tmp_path / "wheels")}
    home = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    ran = 0
    for step in steps():
        if not step.startswith(("pip ", "kafka-index ")):
            continue
        here = re.sub("/src|/wheels", lambda found: places[found[0]], step)
        subprocess.run(["sh", "-ec", here], env=variables, check=True, timeout=TIMEOUT_SECONDS)
        ran += 1
    assert ran == 3
    for command in (("verify", "--input", str(DUMP / "app-logs-0")), ("help", "verify")):
        result = subprocess.run(
            [home / "bin" / "kafka-index", *command],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        assert result.returncode == 0, result.stderr
    assert result.stdout == (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    assert not list((tmp_path / ".cache").rglob("*.bin"))  # the shared kernels were used


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    needing_downloads("the image")
    with built_image() as built:
        yield built


def test_user_of_the_image_verifies_a_dump_and_compiles_nothing(image: Image) -> None:
    command = ("verify", "--input", "/dumps/dump", "--config", "/dumps/dump.properties")
    printed = image.run("kafka-index", *command, mounted=ROOT / "examples")
    assert "nothing harmful was found" in printed
    assert "compiling" not in printed


def test_image_contains_the_dependencies_of_spark(image: Image) -> None:
    command = ("build", "--input", "/dumps/app-logs-0", "--output", "out", "--engine", "spark")
    printed = image.run("kafka-index", *command, "--master", "local[1]", mounted=DUMP)
    assert re.search(r"^built +3 ", printed, re.MULTILINE), printed


def test_image_runs_as_a_separate_user(image: Image) -> None:
    assert image.run("whoami", mounted=DUMP).strip() == "kafka-index"


def test_image_has_every_extra_that_a_run_uses() -> None:
    (installed,) = re.findall(r"\.whl\)\[([a-z0-9,]+)\]", (ROOT / "Dockerfile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Java is Debian's.
    assert set(installed.split(",")) == set(project["optional-dependencies"]) - {
        *("dev", "docs", "java")
    }


def test_pip_can_install_next_to_debian_packages() -> None:
    last_stage = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "\nENV PIP_BREAK_SYSTEM_PACKAGES=1\n" in last_stage.partition("pip install")[0]


def test_image_copies_every_file_of_the_package_build() -> None:
    kept = (ROOT / ".dockerignore").read_text().split()
    named = [line[1:] for line in kept if line.startswith("!")]
    assert all((ROOT / name).exists() for name in named)
    package = {"kafka_index", "docs", "pyspark_kafka_log"}
    assert package | {"pyproject.toml", "README.md", "LICENSE"} == set(named)
