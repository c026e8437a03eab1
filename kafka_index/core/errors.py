"""The error tree: every failure this package reports, with its place and a remedy.

All errors pickle (they cross from Spark executors to the driver) and print as one line.
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

# Error numbers that are about the file itself: another try would meet the same. All others are
# about permission, disk, memory or network.
_ABOUT_THE_FILE = frozenset(
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

#: What to do about too many open files (EMFILE), whatever was being opened.
OPEN_FILES_HINT = "raise the limit (ulimit -n) or use fewer --threads, then run again"

# The errors that `Faults` keeps.
_MAX_FAULTS = 100

_Error = TypeVar("_Error", bound=BaseException)

# Control characters (C0, DEL, C1), separators and directions of text (which can make a name look
# like another line, or like another name), and bytes that are not UTF-8.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_SHORT = {"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r"}
_FIRST_SURROGATE_OF_BYTES = 0xDC00

# Constructors take sizes from Python 3.12 on.
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 100

_TYPE_NAMES: dict[Any, str] = {
    bool: "True or False",
    Integral: "an integer",
    Integral | None: "an integer, or None",
    str: "a text",
    str | None: "a text, or None",
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
    """Return the command that prints a page of the documentation, as hints name it."""
    return f"kafka-index help {name}"


def printable(text: str) -> str:
    r"""Return a text in which names can neither end the line nor control a terminal.

    Control characters and bytes that are not UTF-8 are escaped as ``ls -b`` does (``\n``,
    ``\033``, ``\377``), other characters without a glyph as ``\u202e``.
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0x80 <= code - _FIRST_SURROGATE_OF_BYTES <= 0xFF:
        code -= _FIRST_SURROGATE_OF_BYTES
        return f"\\{code:03o}"
    return f"\\{code:03o}" if code < 0x80 else f"\\u{code:04x}"


def argument_text(value: object) -> str:
    """Return an argument as a message shows it: short, also where it is a table."""
    return " ".join(_SHORT_REPR.repr(value).split())


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: ``1 segment``, ``2 segments``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def first_of(names: Sequence[object], most: int) -> str:
    """Return the first of some names, and how many more there are: ``a, b and 2 more``."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


class KafkaIndexError(Exception):
    """Base of every error this package raises on purpose.

    Parameters
    ----------
    message : str
        The problem, without the place.
    path : str or PathLike, optional
        The file or folder concerned.
    position_bytes : int, optional
        Byte position in that file.
    expected, found : object, optional
        The content that the rules require, and the actual one.
    hint : str, optional
        The next step for the user.
    line : int, optional
        Line of a text file, the first being 1; the message names it too.
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
        """Return the error as one line: place, message, expected and found, hint."""
        place = "" if self.path is None else f"{printable(self.path)}: "
        if self.position_bytes is not None:
            place += f"at byte {self.position_bytes}: "
        text = place + self.described
        hint = OPEN_FILES_HINT if lacks_open_files(self) else self.hint
        return printable(" ".join((f"{text}; {hint}" if hint else text).split()))

    @property
    def described(self) -> str:
        """The message with what was expected and found, without place and hint."""
        known = [("expected", self.expected), ("found", self.found)]
        details = ", ".join(f"{name} {value}" for name, value in known if value is not None)
        return f"{self.message} ({details})" if details else self.message

    @property
    def _details(self) -> dict[str, Any]:
        """The keyword arguments."""
        names = ("path", "position_bytes", "expected", "found", "hint", "line")
        return {name: getattr(self, name) for name in names}

    def at(self, path: str | PathLike[str], position_bytes: int) -> Self:
        """Return the same error about a place."""
        return type(self)(
            self.message, **self._details | {"path": path, "position_bytes": position_bytes}
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments, and the cause where the environment is at fault."""
        cause = next(filter(_is_environment, _causes(self)), None)
        return _rebuild, (type(self), self.message, self._details), {"__cause__": cause}


def _rebuild(
    kind: type[KafkaIndexError], message: str, details: Mapping[str, Any]
) -> KafkaIndexError:
    return kind(message, **details)


class ConfigError(KafkaIndexError):
    """A setting has an illegal value, or a settings file cannot be read."""


class InputError(KafkaIndexError):
    """The input is missing, malformed, or not accepted by the command."""


class LinkedOutError(InputError):
    """A file of a dump is a link that leads out of the input, and such links are not followed."""


class RetriableError(KafkaIndexError):
    """Permission, disk, memory, cluster or network: not the data, and worth a retry."""


class StartRefusedError(KafkaIndexError):
    """A broker exits over what it finds."""

    @classmethod
    def of(cls, error: KafkaIndexError, path: str) -> Self:
        """Return the refusal for what another error says of a file, by default of this one."""
        own = {"path": error.path or path, "hint": None}
        return cls(error.message, **error._details | own)  # noqa: SLF001, of the same class


class DirectoryFailsError(StartRefusedError):
    """A broker takes the data directory offline; it exits where that is its only one."""


class OfflineAtOnceError(DirectoryFailsError):
    """A broker takes the data directory offline before it loads the rest of its partitions.

    Source: ``LogDirFailureChannel.maybeAddOfflineLogDir``.
    """


class BadFileError(OfflineAtOnceError, InputError):
    """A small file of a dump is not a file, or not text (Kafka: IOException)."""


class ReadError(InputError, RetriableError):
    """The input's disk failed, or the input changed, while it was read."""


class EngineError(RetriableError):
    """Spark is not installed, does not start, or lost a job."""


class ExecutorError(EngineError):
    """An executor does not see what the driver sees."""


class DamageError(KafkaIndexError):
    """A result is not ok: the fault is in the data, and the rows of the result say where."""


class CorruptLogError(KafkaIndexError):
    """A ``.log`` holds bytes that Kafka's recovery would not keep."""


class TooLargeError(CorruptLogError):
    """The records of a batch decompress to more than the process may hold."""

    @classmethod
    def of_records(cls, max_bytes: int) -> TooLargeError:
        """Return the error for records that exceed a limit."""
        return cls(
            "the records decompress to more than is allowed",
            expected=f"{max_bytes} bytes or less",
            hint="raise --max-decompressed-bytes to read them",
        )


class CorruptObjectError(KafkaIndexError):
    """An object of tiered storage that is cut or altered, or was encrypted with another key."""


class CorruptRecordError(KafkaIndexError):
    """A record of the metadata log or of an internal topic that does not decode."""


class UnknownSchemaError(KafkaIndexError):
    """No schema has the id or the GUID of a record."""


class BadSchemaError(KafkaIndexError):
    """A schema that does not parse, or whose references are missing or circular."""


class CorruptIndexError(KafkaIndexError):
    """An index file fails its sanity check (Kafka: CorruptIndexException)."""


class UnknownVersionError(CorruptIndexError):
    """An entry of a version that a broker exits on (Kafka: IllegalArgumentException)."""


class CorruptSnapshotError(KafkaIndexError):
    """A producer snapshot that a broker would discard (Kafka: CorruptSnapshotException)."""


class IndexFullError(KafkaIndexError):
    """An append to an index without a free slot (Kafka: IllegalArgumentException)."""


class InvalidOffsetError(KafkaIndexError):
    """An offset that does not ascend (Kafka: InvalidOffsetException)."""


class InvalidEpochError(KafkaIndexError):
    """A leader epoch, or its start, below 0 (Kafka: IllegalArgumentException)."""


class InvalidTimestampError(KafkaIndexError):
    """A timestamp below the last one of a time index (Kafka: IllegalStateException)."""


class IndexOffsetOverflowError(KafkaIndexError):
    """An offset outside base..base + 2^31 - 1 (Kafka: IndexOffsetOverflowException)."""


class PublishError(RetriableError):
    """The target cannot be written: permissions, disk full, or held by a broker."""


class StagedFileGoneError(PublishError):
    """A finished file is gone before it was published: another attempt may have published it."""


def without_frames(error: _Error) -> _Error:
    """Return an error that is kept as a result, without the frames it was raised through.

    They hold the bytes that were read and decompressed there for as long as the error is held.
    """
    rest: list[BaseException | None] = [error]
    seen: set[int] = set()
    while rest:
        each = rest.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            rest += (each.__cause__, each.__context__)
    return error


def is_retriable(error: BaseException) -> bool:
    """Return whether the environment is at fault, so that the same run may succeed later.

    That holds for `RetriableError`, for an operating system's error that is not about the file
    itself (such as ENOENT), and for an error of this package that either of them caused.
    """
    return _is_environment(error) or any(map(_is_environment, _causes(error)))


def lacks_open_files(error: BaseException) -> bool:
    """Return whether an error means that the process has as many open files as it may have."""
    return any(
        isinstance(each, OSError) and each.errno == errno.EMFILE
        for each in (error, *_causes(error))
    )


def raise_retriable(errors: Iterable[BaseException]) -> None:
    """Raise the first error for which the environment is at fault; nothing for none."""
    for error in errors:
        if is_retriable(error):
            raise error


def _is_environment(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno not in _ABOUT_THE_FILE
    return isinstance(error, RetriableError | MemoryError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    while isinstance(error, KafkaIndexError) and error.__cause__ is not None:
        error = error.__cause__
        yield error


def refuse_other_types(**given: tuple[object, Any]) -> None:
    """Refuse arguments, by their names, that are not of their types; raises `ConfigError`.

    A type may be a union, and `Integral` stands for integers of Python and numpy, but no boolean.
    """
    for name, (value, kind) in given.items():
        is_flag = isinstance(value, bool) and kind in (Integral, Integral | None)
        if not isinstance(value, kind) or is_flag:
            raise ConfigError(
                f"{name} is not of its type",
                expected=_TYPE_NAMES.get(kind) or getattr(kind, "__name__", str(kind)),
                found=argument_text(value),
            )


def refuse_fields_of_other_types(settings: Any) -> None:
    """Refuse numbers, flags and texts that are not of the types of a dataclass's fields."""
    for own in fields(settings):
        kind = _FIELD_TYPES.get(own.type)  # type: ignore[arg-type]  # a text
        if kind is not None:
            refuse_other_types(**{own.name: (getattr(settings, own.name), kind)})


@dataclass
class Faults:
    """Errors that did not end a run: the first ones, and the number of all.

    `retriable` contains True if one of all is retriable, and False if one is not.
    """

    first: list[KafkaIndexError] = field(default_factory=list)
    total: int = 0
    retriable: set[bool] = field(default_factory=set)

    def add(self, *faults: KafkaIndexError) -> None:
        """Add errors."""
        self.total += len(faults)
        self.first += faults[: max(_MAX_FAULTS - len(self.first), 0)]
        self.retriable |= set(map(is_retriable, faults))

    def add_damage(self, count: int) -> None:
        """Count further damage, whose errors are not kept."""
        self.total += count
        self.retriable |= {False} if count else set()
