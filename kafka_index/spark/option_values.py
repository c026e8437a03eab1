"""Values of the options of data sources: texts in, values or one line about what is wrong out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka_index.errors import InputError
from kafka_index.layout.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.layout.times import Time

_Value = TypeVar("_Value")


def parse_names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names in an option, separated by commas."""
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def parse_json(options: Mapping[str, str], name: str) -> Any:
    """Return the JSON in an option."""
    try:
        return json.loads(options[name])
    except ValueError as error:
        raise malformed(options, name, "JSON") from error


def parse_by_partition(options: Mapping[str, str], name: str) -> dict[str, dict[int, int]]:
    """Return the numbers by topic and partition in an option."""
    return _by_partition(options, name, lambda value: _integer(value, INT64_MAX))


def parse_times_by_partition(options: Mapping[str, str], name: str) -> dict[str, dict[int, Time]]:
    """Return the times by topic and partition in an option, as they are given."""
    return _by_partition(
        options,
        name,
        lambda value: value if isinstance(value, str) else _integer(value, INT64_MAX),
    )


def _by_partition(
    options: Mapping[str, str], name: str, convert: Callable[[Any], _Value]
) -> dict[str, dict[int, _Value]]:
    try:
        return {
            topic: {
                _integer(partition, INT32_MAX): convert(value)
                for partition, value in values.items()
            }
            for topic, values in parse_json(options, name).items()
        }
    except (AttributeError, OverflowError, ValueError) as error:
        raise malformed(options, name, '{"topic": {"0": 123}}') from error


def parse_number(options: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """Return the number in an option."""
    try:
        number = _integer(options.get(name, str(default)).strip(), INT64_MAX)
    except ValueError as error:
        raise malformed(options, name, "a number") from error
    if number < least:
        raise malformed(options, name, f"{least} or more")
    return number


def _integer(value: object, largest: int) -> int:
    """Return a number as Spark's Kafka source reads it: as Java does, and cut after the point."""
    number = parse_java_integer(str(int(value) if isinstance(value, float) else value), largest)
    if number is None:
        raise ValueError(f"{value!r} is not an integer")
    return number


def parse_flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether an option is true."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise malformed(options, name, "true or false")
    return text == "true"


def parse_choice(options: Mapping[str, str], name: str, choices: Mapping[str, Any]) -> Any:
    """Return the value of a choice, in any case; the first of them by default."""
    text = options.get(name, next(iter(choices)))
    for choice, value in choices.items():
        if choice.lower() == text.lower():
            return value
    raise malformed(options, name, ", ".join(choices))


def malformed(options: Mapping[str, str], name: str, expected: str) -> InputError:
    """Return the error about an option."""
    return InputError(f"the option {name} is malformed", expected=expected, found=options.get(name))
