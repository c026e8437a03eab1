"""Every named segment, each with what Kafka 4.3.1 does to it."""

from __future__ import annotations

from tests.support.cases import Case
from tests.support.framing_cases import FRAMING
from tests.support.index_cases import INDEXES
from tests.support.record_cases import CODECS, COMPRESSED, RECORDS
from tests.support.transaction_cases import CONTROL, OTHERS, TRANSACTIONS

NAMED: tuple[Case, ...] = (
    FRAMING + INDEXES + TRANSACTIONS + CONTROL + RECORDS + CODECS + COMPRESSED + OTHERS
)
