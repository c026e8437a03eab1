"""Versions of objects: a listing and a request for one object name the same one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kafka_index.stores.object_store import _all_quoted, _quoted


@pytest.mark.parametrize(
    ("e_tag", "version"),
    [("0x8D2A", '"0x8D2A"'), ('"0x8D2A"', '"0x8D2A"'), ('W/"a"', 'W/"a"'), ("", "")],
    ids=["as Azure lists it", "as HTTP has it", "weak", "none"],
)
def test_an_etag_has_its_quotes(e_tag: str, version: str) -> None:
    assert _quoted(e_tag) == version
    assert _all_quoted(pa.array([e_tag, '"b"'])).to_pylist() == [version, '"b"']
