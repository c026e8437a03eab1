"""The notebook of examples/ runs as it stands, and prints what it shows."""

from __future__ import annotations

import nbformat
import pytest

from tools.docs.notebook import NOTEBOOK, executed, printed

SHOWN = list(printed(nbformat.read(NOTEBOOK, as_version=4)))


@pytest.mark.filterwarnings("default")  # those of Jupyter's libraries
def test_notebook_output_equals_a_new_run() -> None:
    assert list(printed(executed())) == SHOWN


def test_notebook_output_has_tables_and_pictures_but_no_local_paths() -> None:
    texts = [text for _, outputs in SHOWN for text in outputs]
    assert len(texts) >= 10
    assert texts.count("a picture") == 2
    assert str(NOTEBOOK.parent) not in NOTEBOOK.read_text(encoding="utf-8")
