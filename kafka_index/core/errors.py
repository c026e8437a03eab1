"""The error tree of this package; each error has a location and a hint.

All errors can be pickled, to be sent from Spark executors to the driver, and print as one line.
"""

from __future__ import annotations

import errno
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from os import PathLike, fspath
from typing import Any, Self, TypeVar

# Errors of the file itself, which a retry would not fix. Other errors concern permission, disk,
# memory or network.
_FILE_ERRNOS = frozenset(
    {
        None,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENODEV,
    }
)

#: Hint for too many open files (EMFILE).
OPEN_FILES_HINT = "raise the limit (ulimit -n) or use fewer --threads, then run again"

# Maximum number of errors that `Faults` keeps.
_MAX_FAULTS = 100

_Error = TypeVar("_Error", bound=BaseException)

# Control characters (C0, DEL, C1), separators, text direction marks, and bytes that are not UTF-8.
# They can make a name look like several lines, or like another name.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_SHORT_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\v": "\\v",
    "\f": "\\f",
    "\r": "\\r",
}
_FIRST_SURROGATE_OF_BYTES = 0xDC00

# Only since Python 3.12, the constructor of `reprlib.Repr` accepts these sizes.
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 100

_TYPE_NAMES: dict[Any, str] = {
    bool: "True or False",
    Integral: "an integer",
    Integral | None: "an integer, or None",
    str: "a string",
    str | None: "a string or None",
    Mapping: "a mapping",
}
_FIELD_TYPES = {
    "bool": bool,
    "int": Integral,
    "int | None": Integral | None,
    "str": str,
    "str | None": str | None,
}


def help_page(name: str) -> str:
    """Return the command that prints a documentation page, for hints."""
    return f"kafka-index help {name}"


def printable(text: str) -> str:
    r"""Escape a text so that names cannot end the line or control a terminal.

    Control characters and bytes that are not UTF-8 are escaped as in ``ls -b`` (``\n``, ``\033``,
    ``\377``), other characters without a glyph as ``\u202e``.
    """
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    if 0x80 <= code - _FIRST_SURROGATE_OF_BYTES <= 0xFF:
        code -= _FIRST_SURROGATE_OF_BYTES
        return f"\\{code:03o}"
    return f"\\{code:03o}" if code < 0x80 else f"\\u{code:04x}"


def argument_text(value: object) -> str:
    """Return a short text of an argument for messages, even if it is a table."""
    return " ".join(_SHORT_REPR.repr(value).split())


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: ``1 segment``, ``2 segments``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def first_of(names: Sequence[object], max_names: int) -> str:
    """Return the first names, and the number of others: ``a, b and 2 more``."""
    first_names = ", ".join(map(str, names[:max_names]))
    return (
        f"{first_names} and {len(names) - max_names} more"
        if len(names) > max_names
        else first_names
    )


class KafkaIndexError(Exception):
    """Base class of all errors that this package raises on purpose.

    Parameters
    ----------
    message : str
        The problem, without its location.
    path : str or PathLike, optional
        The file or folder.
    position_bytes : int, optional
        Byte position in the file.
    expected, found : object, optional
        The required content, and the actual content.
    hint : str, optional
        The next step for the user.
    line : int, optional
        Line number in a text file, from 1; the message contains it too.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        position_bytes: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else fspath(path)
        self.position_bytes = position_bytes
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.hint = hint
        self.line = line

    def __str__(self) -> str:
        """Return the error as one line: location, message, expected and found, hint."""
        location = "" if self.path is None else f"{printable(self.path)}: "
        if self.position_bytes is not None:
            location += f"at byte {self.position_bytes}: "
        text = location + self.described
        hint = OPEN_FILES_HINT if lacks_open_files(self) else self.hint
        return printable(" ".join((f"{text}; {hint}" if hint else text).split()))

    @property
    def described(self) -> str:
        """The message with expected and found, without location and hint."""
        details_by_name = [("expected", self.expected), ("found", self.found)]
        details = ", ".join(
            f"{name} {value}" for name, value in details_by_name if value is not None
        )
        return f"{self.message} ({details})" if details else self.message

    @property
    def _details(self) -> dict[str, Any]:
        """The keyword arguments of the constructor."""
        names = ("path", "position_bytes", "expected", "found", "hint", "line")
        return {name: getattr(self, name) for name in names}

    def at(self, path: str | PathLike[str], position_bytes: int) -> Self:
        """Return the same error with a location."""
        return type(self)(
            self.message, **self._details | {"path": path, "position_bytes": position_bytes}
        )

    @classmethod
    def of(cls, error: KafkaIndexError, path: str | None = None) -> Self:
        """Convert an error to this class, without hint; `path` is used if the error has no path."""
        location = {"path": error.path or path, "hint": None}
        return cls(error.message, **error._details | location)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments, and the cause if the error is retriable."""
        cause = next(filter(_is_environment, _causes(self)), None)
        return _rebuild, (type(self), self.message, self._details), {"__cause__": cause}


def _rebuild(
    error_class: type[KafkaIndexError], message: str, details: Mapping[str, Any]
) -> KafkaIndexError:
    return error_class(message, **details)


class ConfigError(KafkaIndexError):
    """A setting has an invalid value, or a settings file cannot be read."""


class InputError(KafkaIndexError):
    """The input is missing, malformed, or not accepted by the command."""


class LinkedOutError(InputError):
    """A file of a dump is a link that points outside the input, and such links are not followed."""


class RetriableError(KafkaIndexError):
    """Permission, disk, memory, cluster or network failed, not the data; a retry may succeed."""


class StartRefusedError(KafkaIndexError):
    """A broker exits because of this content."""


class DirectoryFailsError(StartRefusedError):
    """A broker marks the data directory offline; it exits if it has no other one."""


class OfflineAtOnceError(DirectoryFailsError):
    """A broker marks the data directory offline before it has loaded all its partitions.

    Source: ``LogDirFailureChannel.maybeAddOfflineLogDir``.
    """


class BadFileError(OfflineAtOnceError, InputError):
    """A metadata file of a dump is not a file, or not text (Kafka: IOException)."""


class ReadError(InputError, RetriableError):
    """The disk of the input failed, or the input changed while it was being read."""


class EngineError(RetriableError):
    """Spark is not installed, does not start, or lost a job."""


class ExecutorError(EngineError):
    """An executor has other files than the driver."""


class DamageError(KafkaIndexError):
    """The data of a result is damaged; the rows of the result contain the locations."""


class CorruptLogError(KafkaIndexError):
    """A ``.log`` contains bytes that Kafka's recovery would remove."""


class TooLargeError(CorruptLogError):
    """The decompressed records of a batch exceed the memory limit of the process."""

    @classmethod
    def of_records(cls, max_bytes: int) -> TooLargeError:
        return cls(
            "the decompressed records exceed the memory limit",
            expected=f"{max_bytes} bytes or less",
            hint="raise --max-decompressed-bytes",
        )


class CorruptObjectError(KafkaIndexError):
    """An object of tiered storage is truncated, altered, or encrypted with another key."""


class CorruptRecordError(KafkaIndexError):
    """A record of the metadata log or of an internal topic cannot be decoded."""


class UnknownSchemaError(KafkaIndexError):
    """No schema has the ID or GUID in a record."""


class BadSchemaError(KafkaIndexError):
    """A schema cannot be parsed, or its references are missing or circular."""


class CorruptIndexError(KafkaIndexError):
    """An index file fails its sanity check (Kafka: CorruptIndexException)."""


class UnknownVersionError(CorruptIndexError):
    """An entry with a version on which a broker exits (Kafka: IllegalArgumentException)."""


class CorruptSnapshotError(KafkaIndexError):
    """A producer snapshot that a broker would discard (Kafka: CorruptSnapshotException)."""


class IndexFullError(KafkaIndexError):
    """An append to a full index (Kafka: IllegalArgumentException)."""


class InvalidOffsetError(KafkaIndexError):
    """An offset that does not ascend (Kafka: InvalidOffsetException)."""


class InvalidEpochError(KafkaIndexError):
    """A negative leader epoch or start offset (Kafka: IllegalArgumentException)."""


class InvalidTimestampError(KafkaIndexError):
    """A timestamp below the last timestamp of a time index (Kafka: IllegalStateException)."""


class IndexOffsetOverflowError(KafkaIndexError):
    """An offset outside base..base + 2^31 - 1 (Kafka: IndexOffsetOverflowException)."""


class PublishError(RetriableError):
    """The target is not writable: permission, full disk, or locked by a broker."""


class StagedFileGoneError(PublishError):
    """A staged file disappeared before it was published: another attempt may have published it."""


def without_frames(error: _Error) -> _Error:
    """Remove the tracebacks of an error that is part of a result.

    The frames of a traceback would keep decompressed data in memory.
    """
    pending: list[BaseException | None] = [error]
    cleared_ids: set[int] = set()
    while pending:
        related_error = pending.pop()
        if related_error is not None and id(related_error) not in cleared_ids:
            cleared_ids.add(id(related_error))
            related_error.__traceback__ = None
            pending += (related_error.__cause__, related_error.__context__)
    return error


def is_retriable(error: BaseException) -> bool:
    """Return whether the environment caused the error, so that the same run may succeed later.

    True for `RetriableError` and `MemoryError`, for an `OSError` unless it is about the file itself
    (such as ENOENT), and for an error of this package that was caused by one of these.
    """
    return _is_environment(error) or any(map(_is_environment, _causes(error)))


def lacks_open_files(error: BaseException) -> bool:
    """Return whether the process has reached its limit of open files."""
    return any(
        isinstance(related_error, OSError) and related_error.errno == errno.EMFILE
        for related_error in (error, *_causes(error))
    )


def raise_retriable(errors: Iterable[BaseException]) -> None:
    """Raise the first retriable error, if any."""
    for error in errors:
        if is_retriable(error):
            raise error


def _is_environment(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno not in _FILE_ERRNOS
    return isinstance(error, RetriableError | MemoryError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    while isinstance(error, KafkaIndexError) and error.__cause__ is not None:
        error = error.__cause__
        yield error


def refuse_other_types(**values_and_types: tuple[object, Any]) -> None:
    """Raise `ConfigError` for values of the wrong type; keywords are argument names.

    A type may be a union; `Integral` means Python and numpy integers, but not booleans.
    """
    for name, (value, value_type) in values_and_types.items():
        is_flag = isinstance(value, bool) and value_type in (Integral, Integral | None)
        if not isinstance(value, value_type) or is_flag:
            raise ConfigError(
                f"{name} has the wrong type",
                expected=_TYPE_NAMES.get(value_type)
                or getattr(value_type, "__name__", str(value_type)),
                found=argument_text(value),
            )


def check_field_types(settings: Any) -> None:
    """Raise `ConfigError` for numbers, flags and strings that do not match a dataclass's types."""
    for settings_field in fields(settings):
        field_type = _FIELD_TYPES.get(settings_field.type)  # type: ignore[arg-type]  # a text
        if field_type is not None:
            refuse_other_types(
                **{settings_field.name: (getattr(settings, settings_field.name), field_type)}
            )


@dataclass
class Faults:
    """The first errors that did not end a run, and the number of all errors.

    `retriable` contains True if an error is retriable, and False if an error is not retriable.
    """

    first: list[KafkaIndexError] = field(default_factory=list)
    total: int = 0
    retriable: set[bool] = field(default_factory=set)

    def add(self, *faults: KafkaIndexError) -> None:
        self.total += len(faults)
        self.first += faults[: max(_MAX_FAULTS - len(self.first), 0)]
        self.retriable |= set(map(is_retriable, faults))

    def add_damage(self, count: int) -> None:
        """Count further corruptions whose errors are not kept."""
        self.total += count
        self.retriable |= {False} if count else set()
