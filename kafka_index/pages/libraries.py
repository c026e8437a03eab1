"""The scripts of Bokeh that a page carries, from the package that is installed."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

from kafka_index.errors import InputError

_SCRIPTS = ("bokeh", "bokeh-widgets", "bokeh-tables", "bokeh-api")


def bokeh_folder(report: str) -> Path:
    """Return the folder of Bokeh, which is not imported.

    Raises `InputError`, which names the report, if it is not installed.
    """
    spec = importlib.util.find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the library for HTML reports is not installed (bokeh)",
            path=report,
            hint="pip install 'kafka-index[html]'",
        )
    return Path(spec.submodule_search_locations[0])


def bokeh_version() -> str:
    """Return the version of Bokeh."""
    return version("bokeh")


def bokeh_scripts(folder: Path) -> list[bytes]:
    """Return the scripts, in the order in which a page runs them."""
    scripts = folder / "server" / "static" / "js"
    return [(scripts / f"{name}.min.js").read_bytes() for name in _SCRIPTS]


def bokeh_license(folder: Path) -> str:
    """Return the text of Bokeh's licence, which goes where its scripts go."""
    return (folder / "LICENSE.txt").read_text(encoding="utf-8")
