"""The ``quorum-state`` in a metadata log's directory: whether a node starts on it.

Sources: Kafka's ``FileQuorumStateStore``, ``QuorumStateDataJsonConverter`` and
``QuorumState.initialize``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from kafka_index.dump.small_files import read_file
from kafka_index.errors import DirectoryFailsError
from kafka_index.layout.checkpoints import java_lines
from kafka_index.layout.integers import INT32_MAX, INT64_MAX
from kafka_index.layout.java_texts import parse_java_uuid
from kafka_index.layout.names import QUORUM_STATE
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.prediction import Refusal

_DATA_VERSION = "data_version"
_VERSIONS = (0, 1)
_UNKNOWN = -1
# Jackson's blanks; Python's parser skips none before the first token.
_BLANKS = " \t\r\n"


def why_not_quorum_state(metadata_log: str) -> Refusal | None:
    """Return why a node exits over the quorum state of its metadata log; None where it does not.

    The metadata log is the directory ``__cluster_metadata-0``, or its URI. Without the file the
    epoch is that of the log. Raises `InputError` if this process may not read the file.
    """
    path = os.path.join(metadata_log, QUORUM_STATE)
    try:
        data = read_file(path)
    except DirectoryFailsError as error:
        return Refusal(path, None, error.message)
    if data is None:
        return None
    try:
        _check(_first_object(data))
    except ValueError as error:
        content = quote_content(data.decode(errors="replace"), path)
        return Refusal(path, None, f"{error}, found {content}")
    return None


def sole_voter(metadata_log: str) -> int | None:
    """Return the only controller that the quorum state names; None for several, or for none.

    Raises `InputError` if this process may not read the file.
    """
    try:
        data = read_file(os.path.join(metadata_log, QUORUM_STATE))
        voters = _first_object(data or b"").get("currentVoters")
    except (DirectoryFailsError, ValueError):
        return None
    if not isinstance(voters, list) or len(voters) != 1 or not isinstance(voters[0], dict):
        return None
    voter = voters[0].get("voterId")
    return voter if type(voter) is int else None


def _first_object(data: bytes) -> Mapping[str, object]:
    """Return the object that the first line begins with; what follows it is not looked at."""
    try:
        lines = java_lines(data.decode())
        found, _ = json.JSONDecoder(parse_constant=_refuse).raw_decode(
            lines[0].lstrip(_BLANKS) if lines else ""
        )
    except (ValueError, RecursionError):
        raise ValueError("its first line is not a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError("its first line is not a JSON object")  # noqa: TRY004
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)


def _check(state: Mapping[str, object]) -> None:
    """Check the fields as they are read; raises `ValueError` if a field is missing or malformed."""
    if _DATA_VERSION not in state:
        raise ValueError(f"{_DATA_VERSION} is missing")
    version = _short(state[_DATA_VERSION])
    if version not in _VERSIONS:
        raise ValueError(f"{_DATA_VERSION} is {version}, expected 0 or 1")
    has_cluster_id = "clusterId" in state or not version
    if has_cluster_id and not isinstance(_field(state, "clusterId"), str):
        raise ValueError("clusterId is not a text")
    leader = _integer(state, "leaderId", INT32_MAX)
    epoch = _integer(state, "leaderEpoch", INT32_MAX)
    _integer(state, "votedId", INT32_MAX)
    if "votedDirectoryId" in state or version:
        text = _field(state, "votedDirectoryId")
        if not isinstance(text, str) or parse_java_uuid(text) is None:
            raise ValueError("votedDirectoryId is not a UUID in base64")
    if "appliedOffset" in state or not version:
        _integer(state, "appliedOffset", INT64_MAX)
    if "currentVoters" in state or not version:
        _check_voters(_field(state, "currentVoters"), version)
    if leader < _UNKNOWN:
        raise ValueError(f"leaderId is {leader}, expected -1 or a node")
    if epoch == INT32_MAX:
        raise ValueError(f"leaderEpoch is {epoch}, and no election can follow")


def _check_voters(voters: object, version: int) -> None:
    if not isinstance(voters, list):
        raise ValueError("currentVoters is not an array")  # noqa: TRY004
    for voter in voters:
        if version:
            raise ValueError("currentVoters is not empty, expected none in data_version 1")
        if not isinstance(voter, dict):
            raise ValueError("voterId is missing")  # noqa: TRY004
        _integer(voter, "voterId", INT32_MAX)


def _field(state: Mapping[str, object], name: str) -> object:
    if name not in state:
        raise ValueError(f"{name} is missing")
    return state[name]


def _integer(state: Mapping[str, object], name: str, largest: int) -> int:
    value = _field(state, name)
    if type(value) is not int or not -largest - 1 <= value <= largest:
        raise ValueError(f"{name} is not a {64 if largest == INT64_MAX else 32}-bit integer")
    return value


def _short(value: object) -> int:
    """Return a JSON value as 16 bits (``JsonNode.shortValue``): 0 where it is not a number."""
    if type(value) is float:
        value = int(max(min(value, INT32_MAX), -INT32_MAX - 1))
    if type(value) is not int:
        return 0
    return (value + 0x8000) % 0x10000 - 0x8000
