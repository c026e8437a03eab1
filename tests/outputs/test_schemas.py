"""Schemas as files: a reader finds the folder of one run, never files of two."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.outputs.output_tests import OutputTests
from tests.support.registry_records import schema_record, write_topic


class TestSchemas(OutputTests):
    """Schemas of a dump, in which the older dump has another schema under the same id."""

    command: ClassVar[str] = "schemas --input {data}/dump --output {out}/schemas"
    skips_unchanged: ClassVar[bool] = False

    def write_inputs(self, data: Path, *, older: bool) -> None:
        texts = ['"int"', '"long"'] if older else ['"string"', '"bytes"', '"float"']
        records = [
            schema_record(f"topic-{number}-value", 1, number, text)
            for number, text in enumerate(texts, start=1)
        ]
        write_topic(data / "dump", "_schemas", records)

    def unit(self, name: str) -> str:
        return name.partition("/")[0]
