"""Every file of a dump against the file that a build would write.

Nothing is written but the report.
"""

from kafka_index.verification.findings import (
    VERIFY_SCHEMA,
    FileClass,
    FileKind,
    Finding,
    LostRange,
    PartitionFindings,
    findings_table,
)
from kafka_index.verification.partition import verify_partitions
from kafka_index.verification.verify_settings import VerifySettings
from kafka_index.verification.verifying import Verification

__all__ = [
    "VERIFY_SCHEMA",
    "FileClass",
    "FileKind",
    "Finding",
    "LostRange",
    "PartitionFindings",
    "Verification",
    "VerifySettings",
    "findings_table",
    "verify_partitions",
]
