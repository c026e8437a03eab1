"""Airflow in an environment of its own, installed once, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.kafka_jars import ensure_made
from tests.servers.processes import built_folder

#: Set to 1, as ``make pipeline`` does: install what the examples run with.
REQUIRED = "KAFKA_INDEX_PIPELINE"
_PACKAGES = ["apache-airflow==3.3.2"]


def needing_downloads(what: str) -> None:
    """Skip a test that installs something large, unless ``make pipeline`` runs it."""
    if os.environ.get(REQUIRED) != "1":
        pytest.skip(f"{what} is installed by make pipeline alone")


def airflow_program() -> Path:
    """Return Airflow's command line."""
    folder = built_folder() / "airflow"
    ensure_made(folder, " ".join(_PACKAGES), lambda: _install(folder))
    return folder / "bin" / "airflow"


def _install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *_PACKAGES], check=True)
