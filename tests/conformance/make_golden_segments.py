"""Let Kafka recover the golden segments, and write down what it leaves.

They are the named segments, the found ones, and drawn segments with what few others have. Writes
``segments.parquet`` and ``manifest.json`` into ``tests/golden``; its README explains what is in
them. ``make golden`` runs this.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.golden_segments import (
    FOUND,
    MANIFEST,
    TABLE,
    GoldenSegment,
    hashes,
    read_found,
    recovered_by_build,
    write_found,
    write_table,
)
from tests.support.named import NAMED

from .features import drawn_segments, features_of
from .kafka_jars import DEFAULT_VERSION
from .recovering import recovered_by_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.segments import Segment

    from .judge import Judge

SEED = 0
DRAWN = 8000
#: The most drawn segments that are kept, and their bytes together.
MOST_KEPT = 400
MOST_BYTES = 600_000
#: So much of a segment is paid by one pair of features.
BYTES_FOR_ONE = 150


def write_golden_segments(judge: Judge) -> None:
    """Recover, choose, and write."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "kafka"
        named = [
            GoldenSegment(case.name, case.segment, recovered_by_kafka(judge, scratch, case.segment))
            for case in NAMED
        ]
        for path in sorted(FOUND.glob("*.json")):
            found = read_found(path)
            kafka = recovered_by_kafka(judge, scratch, found.segment)
            write_found(GoldenSegment(found.name, found.segment, kafka))
        # Our own reasons for a cut distinguish more kinds than Kafka's.
        drawn = [
            (features_of(one, recovered_by_build(scratch, one)), one)
            for one in drawn_segments(SEED, DRAWN)
        ]
        kept = [
            GoldenSegment(f"drawn {number}", one, recovered_by_kafka(judge, scratch, one))
            for number, one in enumerate(chosen(drawn))
        ]
    segments = [*named, *kept]
    write_table(segments)
    manifest = {
        "kafka": DEFAULT_VERSION,
        "configuration": {
            "index.interval.bytes": "index_interval_bytes of each segment",
            "segment.index.bytes": "segment_index_bytes of each segment",
            "producers and leader epochs before the segment": "none",
        },
        "drawn": {"seed": SEED, "segments": DRAWN},
        "segments": len(segments),
        "sha256": hashes(),
    }
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(segments)} segments, {TABLE.stat().st_size} bytes")


def chosen(drawn: list[tuple[set[str], Segment]]) -> Iterator[Segment]:
    """Those with a feature, or two together, that those before have not; small ones first."""
    seen: Counter[tuple[str, ...]] = Counter()
    count = size = 0
    for features, segment in sorted(drawn, key=lambda one: len(one[1].log)):
        combined = {*((one,) for one in features), *combinations(sorted(features), 2)}
        new = sum(not seen[combination] for combination in combined)
        # A small segment may bring little, a large one has to be worth its bytes.
        if not new or new * BYTES_FOR_ONE < len(segment.log):
            continue
        count, size = count + 1, size + len(segment.log)
        if count > MOST_KEPT or size > MOST_BYTES:
            return
        seen.update(combined)
        yield segment
