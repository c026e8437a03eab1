"""Errors: one line each, and the same after a trip between processes."""

from __future__ import annotations

import errno
import pickle

import pytest

from kafka_index.core import errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.KafkaIndexError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_equal_after_pickling(kind: type[errors.KafkaIndexError]) -> None:
    error = kind("bad", path="/a/b", position_bytes=7, expected=1, found=2, hint="mend it")
    second_loads = pickle.loads(pickle.dumps(error))  # noqa: S301, because it is our own
    assert type(second_loads) is kind
    assert vars(second_loads) == vars(error)


def test_error_is_one_line_with_place_expected_found_and_hint() -> None:
    error = errors.CorruptLogError(
        "bad\nCRC", path="/a/b.log", position_bytes=7, expected="1", found="2", hint="cut it"
    )
    assert str(error) == "/a/b.log: at byte 7: bad CRC (expected 1, found 2); cut it"


def test_error_omits_unknown_fields() -> None:
    assert str(errors.InputError("nothing there")) == "nothing there"


@pytest.mark.parametrize(("number", "retriable"), [(errno.EACCES, True), (errno.ENOENT, False)])
def test_retriable_flag_is_equal_after_pickling(number: int, *, retriable: bool) -> None:
    error = errors.InputError("cannot be read")
    error.__cause__ = OSError(number, "no")
    second_loads = pickle.loads(pickle.dumps(error))  # noqa: S301, because it is our own
    assert errors.is_retriable(error) is errors.is_retriable(second_loads) is retriable


def test_nested_cause_determines_the_error_class() -> None:
    inner, outer = errors.ConfigError("cannot be read"), errors.CorruptLogError("unreadable")
    inner.__cause__ = MemoryError()
    outer.__cause__ = inner
    assert errors.is_retriable(outer)
