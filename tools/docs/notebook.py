"""Run the notebook of examples/, and write what its cells print into it.

``python -m tools.docs.notebook`` writes the outputs anew; a test compares them with those of a run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "dump.ipynb"
_TIMEOUT_SECONDS = 300


def executed() -> Any:
    """Return the notebook with the outputs of a run, in its own folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Nothing of the user's counts: neither settings of IPython nor of matplotlib.
        own = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")
        environment = {**os.environ, **dict.fromkeys(own, folder), "PYTHONPATH": str(ROOT)}
        client = NotebookClient(
            notebook,
            timeout=_TIMEOUT_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(NOTEBOOK.parent)}},
            record_timing=False,
            config=Config(
                KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel"}
            ),
        )
        client.execute(env=environment)
    return notebook


def printed(notebook: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the source of each cell of code, and the texts of its outputs; pictures have none."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield cell.source, [_text(output) for output in cell.outputs]


def _text(output: Any) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return "a picture"
    text: str = data.get("text/plain") or output.get("text") or ""
    return text.strip()


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
    sys.stdout.write(f"{NOTEBOOK}\n")
