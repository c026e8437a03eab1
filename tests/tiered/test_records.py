"""Records of tiered dumps, at both isolation levels, against what consumers got."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index import read_records
from kafka_index.tiered.options import TieredOptions
from tests.support.tiered import SETTINGS, setting

_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]

#: Our columns, by their names in the truth.
_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "leader_epoch": "leaderEpoch",
    "key": "key",
    "value": "value",
}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_records_of_a_tiered_dump_are_those_that_consumers_got(
    name: str, isolation: str
) -> None:
    at = setting(name)
    truth = pq.read_table(at.path / "truth" / f"{isolation}.parquet").sort_by(_ORDER)

    found = read_records(
        at.data,
        tiered=TieredOptions((at.remote,), keys=at.keys),
        topics="(?!__).*",
        columns=tuple(_COLUMNS),
        isolation=isolation,
    ).read_all()

    assert found.num_rows == truth.num_rows
    for column, name_there in _COLUMNS.items():
        # The truth of read_committed has offsets and timestamps alone.
        if name_there in truth.column_names:
            values = found[column]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.int64())
            assert values.to_pylist() == truth[name_there].to_pylist(), column
