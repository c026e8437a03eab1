"""Settings of topics, and the values that a broker of 4.3.1 loads (``LogConfig``).

A controller replays any setting, and a broker fails when it makes the log of its topic.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from kafka_index.config import parse_integer
from kafka_index.errors import ConfigError
from kafka_index.layout.integers import INT32_MAX, INT64_MAX, INT64_MIN

_INT = {
    "compression.zstd.level": (-(1 << 17), 22),
    "compression.lz4.level": (1, 17),
    "index.interval.bytes": (0, INT32_MAX),
    "max.message.bytes": (0, INT32_MAX),
    "min.insync.replicas": (1, INT32_MAX),
    "segment.bytes": (1 << 20, INT32_MAX),
    "segment.index.bytes": (4, INT32_MAX),
    "delete.retention.ms": (0, INT64_MAX),
    "file.delete.delay.ms": (0, INT64_MAX),
    "flush.messages": (1, INT64_MAX),
    "flush.ms": (0, INT64_MAX),
    "local.retention.bytes": (-2, INT64_MAX),
    "local.retention.ms": (-2, INT64_MAX),
    "max.compaction.lag.ms": (1, INT64_MAX),
    "message.timestamp.after.max.ms": (0, INT64_MAX),
    "message.timestamp.before.max.ms": (0, INT64_MAX),
    "min.compaction.lag.ms": (0, INT64_MAX),
    "retention.bytes": (INT64_MIN, INT64_MAX),
    "retention.ms": (-1, INT64_MAX),
    "segment.jitter.ms": (0, INT64_MAX),
    "segment.ms": (1, INT64_MAX),
}
_BOOLEAN = re.compile("true|false", re.IGNORECASE)
_THROTTLED = re.compile(r"(\*|(\d+:\d+\s*(,\s*\d+:\d+\s*)*)?)")
_TEXT = {
    "cleanup.policy": re.compile(r"(compact|delete)(\s*,\s*(compact|delete))*"),
    "compression.gzip.level": re.compile(r"-1|[1-9]"),
    "compression.type": re.compile("uncompressed|zstd|lz4|snappy|gzip|producer"),
    "follower.replication.throttled.replicas": _THROTTLED,
    "leader.replication.throttled.replicas": _THROTTLED,
    "message.timestamp.type": re.compile("CreateTime|LogAppendTime"),
    "min.cleanable.dirty.ratio": re.compile(r"0(\.\d*)?|1(\.0*)?|\.\d+"),
    "preallocate": _BOOLEAN,
    "remote.log.copy.disable": _BOOLEAN,
    "remote.log.delete.on.disable": _BOOLEAN,
    "remote.storage.enable": _BOOLEAN,
    "unclean.leader.election.enable": _BOOLEAN,
}


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Check settings that a topic is to get.

    Raises
    ------
    ConfigError
        A setting does not exist, or its value is not valid.
    """
    for name, value in configs.items():
        text = value.strip()
        if name in _INT:
            least, most = _INT[name]
            number = parse_integer(text)
            is_valid, expected = number is not None and least <= number <= most, f"{least}..{most}"
        elif name in _TEXT:
            is_valid, expected = _TEXT[name].fullmatch(text) is not None, _TEXT[name].pattern
        else:
            close = difflib.get_close_matches(name, [*_INT, *_TEXT], n=1)
            raise ConfigError(
                f"{name} is not a setting of a topic", hint=f"is it {close[0]}?" if close else None
            )
        if not is_valid:
            raise ConfigError(
                f"{name} has a value with which no broker starts",
                expected=expected,
                found=repr(value),
            )
