"""Requests: the parameters of a command as a dataclass of typed fields.

Command-line options and ``spark-submit`` options are derived from the fields. Python functions
build the same requests from their arguments. The `Kind` of a field converts its value.
``__post_init__`` rejects invalid combinations.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum, StrEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kafka_index.core.errors import ConfigError, InputError, argument_text
from kafka_index.core.format.config import choice_of, members_of, topics_pattern
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import is_legal_topic
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.format.times import is_relative, now_ms, parse_duration_ms, parse_time
from kafka_index.core.format.uri_passwords import path_of

if TYPE_CHECKING:
    from kafka_index.core.job.engine import Engine

_PARAMETER = "parameter"
# A field name in a message.
_FIELD = re.compile(r"\{(\w+)\}")
#: Accepted forms of a time, for help texts.
TIME_HELP = (
    "TIME is an ISO 8601 time or date (UTC without a zone), now, today, yesterday, or relative "
    "(-90m, -36h, -7d). It may also be milliseconds since 1970 (ms:N if N looks like seconds)."
)


class Group(Enum):
    """Sections of a command's help, with their titles, in order."""

    INPUT = "Input"
    SELECTION = "Selection"
    OUTPUT = "Output"
    DECODING = "Decoding"
    BEHAVIOUR = "Behaviour"
    CLUSTER = "Cluster"
    SETTINGS = "Kafka settings"
    ENGINE = "Engine and memory"
    TIERED = "Tiered storage"
    STORAGE = "Storage"
    HELP = "Help"


class ArgumentError(ConfigError):
    """Arguments that cannot be combined; the message contains field names in braces.

    Python callers see argument names, and command-line users see option names.
    """

    def name_fields(self, name_of: Callable[[str], str]) -> None:
        self.message = _FIELD.sub(lambda match: name_of(match[1]), self.message)

    def __str__(self) -> str:
        """Return the message with field names, which are also the Python argument names."""
        return _FIELD.sub(r"\1", super().__str__())


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """A command-line option.

    Attributes
    ----------
    names : tuple of str
        Such as ``("--quiet", "-q")``.
    choices : tuple of str
        The allowed values, if restricted.
    is_multiple : bool
        The option can be repeated.
    takes_more : bool
        Each use of the option accepts several values, up to the next option.
    """

    names: tuple[str, ...]
    help: str
    group: Group
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None
    is_flag: bool = False
    is_multiple: bool = False
    takes_more: bool = False
    completes: str | None = None


class Kind:
    """A parameter type: converts option text and Python arguments."""

    metavar: str | None = None
    is_flag = False
    is_multiple = False
    takes_more = False
    choices: tuple[str, ...] = ()
    completes: str | None = None

    def convert(self, value: Any, name: str, now: int) -> Any:  # noqa: ARG002, of other kinds
        """Convert a value.

        Raises `ConfigError` or `InputError`. `Request.build` prefixes its message with the name of
        the option or argument, unless the message starts with it.
        """
        return value

    def options(self, parameter: Parameter, names: tuple[str, ...]) -> tuple[OptionSpec, ...]:
        """Return the command-line options of a field; most fields have one."""
        default = parameter.default
        return (
            OptionSpec(
                names,
                parameter.help,
                parameter.group,
                parameter.metavar or self.metavar,
                self.choices,
                str(default) if isinstance(default, str | int) and not self.is_flag else None,
                self.is_flag,
                self.is_multiple,
                self.takes_more,
                self.completes,
            ),
        )

    def combine(self, values: Sequence[Any]) -> Any:
        """Combine the values of all options of a field; None if none is given."""
        return values[0]


@dataclass(frozen=True, slots=True)
class Parameter:
    """How a request field is set: its kind, help text, and command-line names."""

    kind: Kind
    help: str
    group: Group
    names: tuple[str, ...]
    default: object
    metavar: str | None
    is_argument: bool


def parameter(
    kind: Kind,
    group: Group,
    help: str,  # noqa: A002, as click names it
    *names: str,
    default: Any = MISSING,
    metavar: str | None = None,
    is_argument: bool = False,
) -> Any:
    """Declare a request field.

    By default the option is named like the field. A field without a default is required. A
    positional argument (`is_argument`) has no option name.
    """
    shown = Parameter(kind, help, group, names, default, metavar, is_argument)
    return field(default=default, metadata={_PARAMETER: shown})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Base class of requests."""

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""

    def refuse(self, message: str, **details: Any) -> None:
        """Raise `ArgumentError` for a combination of fields; the message has names in braces."""
        raise ArgumentError(message, **details)

    @classmethod
    def build(
        cls,
        given: Mapping[str, object],
        *,
        name_of: Callable[[str], str] = str,
        now: int | None = None,
    ) -> Self:
        """Build a request from values by field name; None means a default of None.

        Parameters
        ----------
        given : mapping of str to object
            Option texts or Python arguments.
        name_of : callable
            Maps a field name to its name in errors.
        now : int, optional
            The current time for relative times, in ms since the epoch.

        Raises
        ------
        ConfigError, InputError
            A value is invalid, or values cannot be combined.
        """
        instant = now_ms() if now is None else now
        known = parameters(cls)
        converted = {}
        for name, value in given.items():
            if value is not None or known[name].default is not None:
                with naming(name_of(name)):
                    converted[name] = known[name].kind.convert(value, name_of(name), instant)
        for name, one in known.items():
            if name not in converted and one.default is MISSING:
                raise ArgumentError(f"{name_of(name)} is required")
        try:
            return cls(**converted)
        except ArgumentError as error:
            error.name_fields(name_of)
            raise


_Request = TypeVar("_Request", bound=Request)


def parameters(kind: type[Request]) -> dict[str, Parameter]:
    return {
        each.name: each.metadata[_PARAMETER] for each in fields(kind) if _PARAMETER in each.metadata
    }


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command: its request, its function, and its help.

    Attributes
    ----------
    work : str
        ``module:function`` below ``kafka_index``. The function is called with the request, an
        `Engine`, a `Listener` and a `ReportSink` or None, and returns a `Result`.
    spark_work : str, optional
        The function to call on Spark, if `work` supports only threads.
    job_examples : str, optional
        Examples for ``spark-submit``; if None, the command cannot run as a job.
    report : str, optional
        ``module:name`` of the `ReportSpec`; if None, the command has no report.
    report_rows : str
        Description of the report rows, for the help.
    has_page : bool
        The report can be an HTML page.
    has_json : bool
        The result can be printed as JSON (`Result.as_object`, or by the command's own printer).
    json_help : str
        Help text of ``--json``.
    """

    name: str
    request: type[Request]
    work: str
    help: str
    usage: str
    examples: str
    job_examples: str | None = None
    report: str | None = None
    report_rows: str = ""
    has_page: bool = False
    has_json: bool = False
    json_help: str = "Print one JSON object."
    has_engine: bool = True
    page: str | None = None
    spark_work: str | None = None

    def work_on(self, engine: Engine) -> Callable[..., Any]:
        """Return the function to call on an engine."""
        place = self.spark_work if engine.on_spark and self.spark_work else self.work
        work: Callable[..., Any] = function_at(place)
        return work


def call(spec: CommandSpec, arguments: Mapping[str, object]) -> Any:
    """Run a command as a Python function, on threads of this process.

    `arguments` are the function's arguments, as in `request_of`, plus the number of ``threads``. If
    the report is streamed (`ReportSpec.is_streamed`), its rows are kept in memory as the result's
    ``rows``.
    """
    from kafka_index.core.job.engine import ThreadEngine  # noqa: PLC0415, slow to import
    from kafka_index.core.job.result import KeptRows  # noqa: PLC0415, slow to import

    given = dict(arguments)
    threads = given.pop("threads", None)
    request = request_of(spec.request, given)
    count = None if threads is None else IntegerKind(1).convert(threads, "threads", 0)
    columns = None if spec.report is None else function_at(spec.report)
    kept = KeptRows(columns.schema) if columns is not None and columns.is_streamed else None
    engine = ThreadEngine(count)
    result = spec.work_on(engine)(request, engine, None, kept)
    return result if kept is None else replace(result, rows=kept.to_table())


def request_of(kind: type[_Request], arguments: Mapping[str, object]) -> _Request:
    """Build a request from the arguments of a Python function.

    ``paths`` are the inputs.
    """
    given = {"inputs" if name == "paths" else name: one for name, one in arguments.items()}
    return kind.build(given, name_of=lambda name: "paths" if name == "inputs" else name)


def function_at(place: str) -> Any:
    """Import the object ``module:name`` below this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"kafka_index.{module}"), name)


# ------------------------------------------------------------------------------------------ kinds


def wrong_value(message: str, expected: str, value: object) -> ConfigError:
    return ConfigError(message, expected=expected, found=argument_text(value))


def input_path(value: object, name: str) -> str:
    """Convert a path to text; resolve a backup URI to one backup for all reads."""
    text = path_of(value, name)
    if not text.startswith("backup:"):
        return text
    from kafka_index.core.fs.paths import pinned_backup  # noqa: PLC0415, slow to import

    return pinned_backup(text)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix errors with the name of the option or argument; errors about a file have its path."""
    try:
        yield
    except (ConfigError, InputError) as error:
        if error.path is None and not error.message.startswith((name, "--")):
            error.message = f"{name}: {error.message}"
        raise


class PathKind(Kind):
    """A path or URI, as text."""

    def __init__(self, metavar: str = "PATH") -> None:
        self.metavar = metavar

    def convert(self, value: Any, name: str, now: int) -> str:  # noqa: ARG002
        return input_path(value, name)


class PathsKind(Kind):
    """One or several paths; at most one option per command has `takes_more`."""

    is_multiple = True

    def __init__(self, metavar: str = "PATH", *, takes_more: bool = True) -> None:
        self.takes_more = takes_more
        self.metavar = f"{metavar}..." if takes_more else metavar

    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:  # noqa: ARG002
        members = None if isinstance(value, str) else members_of(value)
        if members is None:
            return (input_path(value, name),)
        return tuple(input_path(path, name) for path in members)


class FlagKind(Kind):
    """A flag: present on the command line, or a bool in Python."""

    is_flag = True

    def convert(self, value: Any, name: str, now: int) -> bool:  # noqa: ARG002
        # numpy.bool is not a subclass of bool.
        if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
            raise wrong_value(f"{name} is neither true nor false", "True or False", value)
        return bool(value)


class OffKind(FlagKind):
    """A command-line flag that sets its field to False; a bool in Python."""

    def combine(self, values: Sequence[Any]) -> bool:
        return not values[0]


class ChoiceKind(Kind):
    """An enumeration member, or its value."""

    def __init__(self, members: type[StrEnum]) -> None:
        self._members = members
        self.choices = tuple(each.value for each in members)

    def convert(self, value: Any, name: str, now: int) -> StrEnum:  # noqa: ARG002
        return choice_of(self._members, value, name)


class ChoicesKind(Kind):
    """Enumeration members or their values; comma-separated on the command line."""

    metavar = "LIST"
    is_multiple = True

    def __init__(self, members: type[StrEnum]) -> None:
        self._members = members

    def convert(self, value: Any, name: str, now: int) -> frozenset[StrEnum]:  # noqa: ARG002
        given = [value] if isinstance(value, str) else members_of(value)
        if not given:
            raise wrong_value(f"{name} is not a list of choices", ", ".join(self._members), value)
        chosen: list[object] = []
        for one in given:
            is_text = isinstance(one, str) and not isinstance(one, Enum)
            chosen += filter(None, map(str.strip, str(one).split(","))) if is_text else [one]
        if not chosen:
            raise wrong_value(f"{name} is not a list of choices", ", ".join(self._members), value)
        return frozenset(choice_of(self._members, one, name) for one in chosen)


class IntegerKind(Kind):
    """An integer from `least` to `most`; decimal on the command line."""

    metavar = "N"

    def __init__(self, least: int = 0, most: int = INT64_MAX) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, name: str, now: int) -> int:  # noqa: ARG002
        number = value
        if isinstance(value, str):
            number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value) else None
        if (
            isinstance(number, bool)
            or not isinstance(number, Integral)
            or not self._least <= int(number) <= self._most
        ):
            expected = f"an integer from {self._least}"
            if self._most != INT64_MAX:
                expected += f" to {self._most}"
            raise wrong_value(f"{name} is not a number in its range", expected, value)
        return int(number)


class ManyKind(Kind):
    """Values of another kind: a list in Python, a repeatable option."""

    is_multiple = True

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.metavar = kind.metavar

    def convert(self, value: Any, name: str, now: int) -> tuple[Any, ...]:
        members = members_of(value)
        if members is None:
            raise wrong_value(f"{name} is not a list", "a list", value)
        return tuple(self._kind.convert(member, name, now) for member in members)


class IntegersKind(Kind):
    """A list of integers in a range; comma-separated on the command line."""

    metavar = "N,N..."

    def __init__(self, least: int = 0, most: int = INT64_MAX) -> None:
        self._member = IntegerKind(least, most)

    def convert(self, value: Any, name: str, now: int) -> tuple[int, ...]:
        members = value.split(",") if isinstance(value, str) else members_of(value)
        if members is None:
            raise wrong_value(f"{name} is not a list of integers", "a list of integers", value)
        return tuple(
            self._member.convert(one.strip() if isinstance(one, str) else one, name, now)
            for one in members
        )


class NumberKind(Kind):
    """A number from `least` to `most`, or greater than `least`."""

    metavar = "X"

    def __init__(self, least: float, most: float = math.inf, *, is_above: bool = False) -> None:
        self._least, self._most, self._is_above = least, most, is_above

    def convert(self, value: Any, name: str, now: int) -> float:  # noqa: ARG002
        number = math.nan
        if not isinstance(value, bool) and isinstance(value, str | Real):
            with suppress(ValueError, OverflowError):
                number = float(value)
        is_in_range = self._least <= number <= self._most and math.isfinite(number)
        if not is_in_range or (self._is_above and number == self._least):
            expected = f"a number {'above' if self._is_above else 'from'} {self._least:g}"
            if self._most != math.inf:
                expected += f" to {self._most:g}"
            raise wrong_value(f"{name} is not a number in its range", expected, value)
        return number


class DurationKind(Kind):
    """A positive duration: a `timedelta`, or text such as ``90s`` or ``5m``."""

    metavar = "DURATION"

    def convert(self, value: Any, name: str, now: int) -> timedelta:  # noqa: ARG002
        duration = value
        if isinstance(value, str):
            duration = timedelta(milliseconds=parse_duration_ms(value) or 0)
        if not isinstance(duration, timedelta) or duration <= timedelta():
            raise wrong_value(f"{name} is not a duration", "such as 30s, 5m, 1h or 1d", value)
        return duration

    def options(self, parameter: Parameter, names: tuple[str, ...]) -> tuple[OptionSpec, ...]:
        """Return the option, with its default in seconds."""
        default = parameter.default
        text = f"{default.total_seconds():g}s" if isinstance(default, timedelta) else None
        return tuple(replace(one, default=text) for one in Kind.options(self, parameter, names))


class TextKind(Kind):
    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    def convert(self, value: Any, name: str, now: int) -> str:  # noqa: ARG002
        if not isinstance(value, str):
            raise wrong_value(f"{name} is not text", "a text", value)
        return value


class TopicKind(TextKind):
    """The name of a topic."""

    completes = "topic"

    def __init__(self, metavar: str, hint: str | None = None) -> None:
        super().__init__(metavar)
        self._hint = hint

    def convert(self, value: Any, name: str, now: int) -> str:
        text = super().convert(value, name, now)
        if not is_legal_topic(text):
            raise ConfigError(
                f"{name} is not a legal topic name", found=repr(text), hint=self._hint
            )
        return text


class BytesKind(Kind):
    """Bytes or text: UTF-8, or other bytes with the prefix ``hex:`` or ``base64:``."""

    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    def convert(self, value: Any, name: str, now: int) -> bytes:  # noqa: ARG002
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return parse_bytes(value)
        raise wrong_value(f"{name} is not text or bytes", "a text or bytes", value)


class NamesKind(Kind):
    """A list of names; comma-separated on the command line."""

    metavar = "LIST"

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = tuple(known)

    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:  # noqa: ARG002
        if isinstance(value, str):
            members: list[object] | None = [one.strip() for one in value.split(",")]
        else:
            members = members_of(value)
        if members is None or not all(isinstance(one, str) for one in members):
            raise wrong_value(f"{name} is not a list of texts", "a list of texts", value)
        names = tuple(str(one) for one in members if one)
        unknown = [one for one in names if self._known and one not in self._known]
        if unknown or not names:
            raise wrong_value(
                f"{name}: {unknown[0] if unknown else 'nothing'} is not one of the choices",
                ", ".join(self._known) or "a name",
                value,
            )
        return names


class TopicsKind(Kind):
    """Topics: a regular expression for the full name, or a list of names, as a pattern."""

    metavar = "REGEX"
    completes = "topics"

    def convert(self, value: Any, name: str, now: int) -> re.Pattern[str] | None:  # noqa: ARG002
        return topics_pattern(value, name)


class Moment(int):
    """A time in ms since the epoch, with its original notation."""

    given: object

    @property
    def is_relative(self) -> bool:
        return is_relative(self.given)


class TimeKind(Kind):
    """A time, converted to ms since the epoch (`Moment`)."""

    metavar = "TIME"

    def convert(self, value: Any, name: str, now: int) -> Moment:
        with naming(name):
            moment = Moment(parse_time(value, now=now))
        moment.given = value
        return moment
