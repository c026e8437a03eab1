"""Every named segment, each with what Kafka 4.3.1 does to it."""

from __future__ import annotations

from .cases import Case
from .framing_cases import FRAMING
from .index_cases import INDEXES
from .record_cases import CODECS, RECORDS
from .transaction_cases import CONTROL, OTHERS, TRANSACTIONS

NAMED: tuple[Case, ...] = FRAMING + INDEXES + TRANSACTIONS + CONTROL + RECORDS + CODECS + OTHERS
