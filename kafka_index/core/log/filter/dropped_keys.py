"""The keys of dropped records: a file of keys, their match, and counts by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.human import format_count
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.fs.text_files import read_text
from kafka_index.core.job.result import GOOD, Section


class KeyLines(tuple[bytes, ...]):  # noqa: SLOT001, because tuples vary in size
    """Keys, with the line number of each in its file, from 1; picklable."""

    lines: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[bytes], lines: Iterable[int] | None = None) -> Self:
        """Create from keys; by default each key is on its own line."""
        found = cls(keys)
        found.lines = tuple(range(1, len(keys) + 1) if lines is None else lines)
        return found


def read_keys(path: str) -> KeyLines:
    """Read a file with one key per line: text, ``hex:`` or ``base64:``.

    Raises `InputError` if the file cannot be read, or a line is not a key.
    """
    keys, lines = [], []
    for number, line in enumerate(read_text(path, "the keys").split("\n"), start=1):
        text = line.rstrip("\r")
        if not text:
            continue
        try:
            keys.append(parse_bytes(text))
        except InputError as error:
            raise InputError(
                f"line {number} is not a key", path=path, expected="text, hex: or base64:"
            ) from error
        lines.append(number)
    if not keys:
        raise InputError("there is no key in the file", path=path)
    return KeyLines.of(keys, lines)


class KeyMatcher:
    """Selects the records with given keys, for one thread.

    `counts` has the number of records by key, in the order of the sorted keys.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = pa.array(sorted(set(keys)), pa.binary())
        self.counts: Counter[int] = Counter()

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        found = pc.index_in(rows.column("key"), value_set=self._keys)
        numbers, counts = np.unique(found.drop_null().to_numpy(), return_counts=True)
        self.counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        matches: NDArray[np.bool_] = found.is_valid().to_numpy(zero_copy_only=False)
        return matches


def records_by_line(keys: tuple[bytes, ...], parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the number of records by line, from the counts of `KeyMatcher`."""
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part)
    number_of = {key: number for number, key in enumerate(sorted(set(keys)))}
    lines = keys.lines if isinstance(keys, KeyLines) else range(1, len(keys) + 1)
    return {line: counts[number_of[key]] for line, key in zip(lines, keys, strict=True)}


def key_counts(by_line: Mapping[int, int]) -> Mapping[str, int]:
    """Return the counts of keys for ``--summary``; empty without keys."""
    unmatched = sum(not count for count in by_line.values())
    return {"keys": len(by_line), "keys_unmatched": unmatched} if by_line else {}


def key_sections(by_line: Mapping[int, int]) -> list[Section]:
    """Return the number of records by line of the key file, and the lines without records.

    Keys are not shown, because they can be personal data.
    """
    counts = [f"line {line}: {format_count(count)}" for line, count in by_line.items() if count]
    unmatched = [f"line {line}" for line, count in by_line.items() if not count]
    what = plural(len(unmatched), "line")
    return [
        Section("records dropped by line of the keys:", counts, GOOD, noun="line"),
        Section(f"no record has the key of {what}:", unmatched, noun="line"),
    ]
