"""Requests: a request is a dataclass with the parameters of a command as typed fields.

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
from kafka_index.core.format.config import compile_topics, to_choice, to_list_members
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
#: The accepted forms of a time, for help texts.
TIME_HELP = (
    "TIME is an ISO 8601 time or date (UTC without a zone), now, today, yesterday, or relative "
    "(-90m, -36h, -7d). It may also be milliseconds since 1970 (ms:N if N looks like seconds)."
)


class Group(Enum):
    """The sections of a command's help with their titles, in display order."""

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
    """An invalid combination of arguments.

    The message contains field names in braces. `name_fields` replaces them with option names.
    Without `name_fields`, they are Python argument names.
    """

    def name_fields(self, name_of: Callable[[str], str]) -> None:
        self.message = _FIELD.sub(lambda match: name_of(match[1]), self.message)

    def __str__(self) -> str:
        """Return the message with field names, which are also the names of Python arguments."""
        return _FIELD.sub(r"\1", super().__str__())


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """A command-line option.

    Attributes
    ----------
    names : tuple of str
        Names of the option, such as ``("--quiet", "-q")``.
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
    """The kind of a parameter: it converts option texts and Python arguments."""

    metavar: str | None = None
    is_flag = False
    is_multiple = False
    takes_more = False
    choices: tuple[str, ...] = ()
    completes: str | None = None

    def convert(self, value: Any, name: str, now: int) -> Any:  # noqa: ARG002, of other kinds
        """Convert a value.

        Raises `ConfigError` or `InputError`. `Request.build` prefixes the message with the name of
        the option or argument, unless the message starts with this name.
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
        """Combine the values of all options of a field; an option without a value has None."""
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
    request_parameter = Parameter(kind, help, group, names, default, metavar, is_argument)
    return field(default=default, metadata={_PARAMETER: request_parameter})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Base class of requests."""

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""

    def refuse(self, message: str, **details: Any) -> None:
        """Raise `ArgumentError` about fields; `message` contains field names in braces."""
        raise ArgumentError(message, **details)

    @classmethod
    def build(
        cls,
        values: Mapping[str, object],
        *,
        name_of: Callable[[str], str] = str,
        now: int | None = None,
    ) -> Self:
        """Build a request; a value of None is not converted if the default of its field is None.

        Parameters
        ----------
        values : mapping of str to object
            Option texts or Python arguments, by field name.
        name_of : callable
            Returns the name of a field for error messages.
        now : int, optional
            The current time for relative times, in ms since the epoch.

        Raises
        ------
        ConfigError, InputError
            A value is invalid, or values cannot be combined.
        """
        now = now_ms() if now is None else now
        parameter_by_name = parameters(cls)
        converted = {}
        for name, value in values.items():
            kind, default = parameter_by_name[name].kind, parameter_by_name[name].default
            if value is not None or default is not None:
                with naming(name_of(name)):
                    converted[name] = kind.convert(value, name_of(name), now)
        for name, request_parameter in parameter_by_name.items():
            if name not in converted and request_parameter.default is MISSING:
                raise ArgumentError(f"{name_of(name)} is required")
        try:
            return cls(**converted)
        except ArgumentError as error:
            error.name_fields(name_of)
            raise


_Request = TypeVar("_Request", bound=Request)


def parameters(request_class: type[Request]) -> dict[str, Parameter]:
    """Return the parameters of a request class, keyed by field name."""
    metadata = {
        request_field.name: request_field.metadata for request_field in fields(request_class)
    }
    return {name: data[_PARAMETER] for name, data in metadata.items() if _PARAMETER in data}


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
        function_path = self.spark_work if engine.on_spark and self.spark_work else self.work
        work: Callable[..., Any] = import_object(function_path)
        return work


def call(spec: CommandSpec, arguments: Mapping[str, object]) -> Any:
    """Run a command as a Python function, on threads of this process.

    `arguments` are the arguments for `build_request`, plus the number of ``threads``. If the report
    is streamed (`ReportSpec.is_streamed`), the ``rows`` of the result are all report rows.
    """
    from kafka_index.core.job.engine import ThreadEngine  # noqa: PLC0415, slow to import
    from kafka_index.core.job.result import ReportRows  # noqa: PLC0415, slow to import

    values = dict(arguments)
    threads = values.pop("threads", None)
    request = build_request(spec.request, values)
    count = None if threads is None else IntegerKind(1).convert(threads, "threads", 0)
    sink = None
    if spec.report is not None and (report_spec := import_object(spec.report)).is_streamed:
        sink = ReportRows(report_spec.schema)
    engine = ThreadEngine(count)
    result = spec.work_on(engine)(request, engine, None, sink)
    return result if sink is None else replace(result, rows=sink.to_table())


def build_request(request_class: type[_Request], arguments: Mapping[str, object]) -> _Request:
    """Build a request from the arguments of a Python function; ``paths`` sets ``inputs``."""
    values = {"inputs" if name == "paths" else name: value for name, value in arguments.items()}
    return request_class.build(values, name_of=lambda name: "paths" if name == "inputs" else name)


def import_object(function_path: str) -> Any:
    """Import the object ``module:name`` below this package."""
    module, _, name = function_path.partition(":")
    return getattr(importlib.import_module(f"kafka_index.{module}"), name)


# ------------------------------------------------------------------------------------------ kinds


def wrong_value(message: str, expected: str, value: object) -> ConfigError:
    return ConfigError(message, expected=expected, found=argument_text(value))


def input_path(value: object, name: str) -> str:
    """Convert a path to a string; resolve a backup URI, so that all reads use the same backup."""
    text = path_of(value, name)
    if not text.startswith("backup:"):
        return text
    from kafka_index.core.fs.paths import pinned_backup  # noqa: PLC0415, slow to import

    return pinned_backup(text)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix the messages of errors without a path with the name of an option or argument."""
    try:
        yield
    except (ConfigError, InputError) as error:
        if error.path is None and not error.message.startswith((name, "--")):
            error.message = f"{name}: {error.message}"
        raise


class PathKind(Kind):
    """A path or URI as a string."""

    def __init__(self, metavar: str = "PATH") -> None:
        self.metavar = metavar

    def convert(self, value: Any, name: str, now: int) -> str:  # noqa: ARG002
        return input_path(value, name)


class PathsKind(Kind):
    """One or several paths; only one option of a command can have `takes_more`."""

    is_multiple = True

    def __init__(self, metavar: str = "PATH", *, takes_more: bool = True) -> None:
        self.takes_more = takes_more
        self.metavar = f"{metavar}..." if takes_more else metavar

    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:  # noqa: ARG002
        members = None if isinstance(value, str) else to_list_members(value)
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
        self.choices = tuple(member.value for member in members)

    def convert(self, value: Any, name: str, now: int) -> StrEnum:  # noqa: ARG002
        return to_choice(self._members, value, name)


class ChoicesKind(Kind):
    """Enumeration members or their values; comma-separated on the command line."""

    metavar = "LIST"
    is_multiple = True

    def __init__(self, members: type[StrEnum]) -> None:
        self._members = members

    def convert(self, value: Any, name: str, now: int) -> frozenset[StrEnum]:  # noqa: ARG002
        values = [value] if isinstance(value, str) else to_list_members(value)
        if not values:
            raise wrong_value(f"{name} is not a list of choices", ", ".join(self._members), value)
        chosen: list[object] = []
        for one in values:
            is_text = isinstance(one, str) and not isinstance(one, Enum)
            chosen += filter(None, map(str.strip, str(one).split(","))) if is_text else [one]
        if not chosen:
            raise wrong_value(f"{name} is not a list of choices", ", ".join(self._members), value)
        return frozenset(to_choice(self._members, one, name) for one in chosen)


class IntegerKind(Kind):
    """An integer in a range; decimal on the command line."""

    metavar = "N"

    def __init__(self, minimum: int = 0, maximum: int = INT64_MAX) -> None:
        self._minimum, self._maximum = minimum, maximum

    def convert(self, value: Any, name: str, now: int) -> int:  # noqa: ARG002
        number = value
        if isinstance(value, str):
            number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value) else None
        if (
            isinstance(number, bool)
            or not isinstance(number, Integral)
            or not self._minimum <= int(number) <= self._maximum
        ):
            expected = f"an integer from {self._minimum}"
            if self._maximum != INT64_MAX:
                expected += f" to {self._maximum}"
            raise wrong_value(f"{name} is not a number in the valid range", expected, value)
        return int(number)


class ManyKind(Kind):
    """Several values of another kind: a list in Python, a repeatable option on the command line."""

    is_multiple = True

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.metavar = kind.metavar

    def convert(self, value: Any, name: str, now: int) -> tuple[Any, ...]:
        members = to_list_members(value)
        if members is None:
            raise wrong_value(f"{name} is not a list", "a list", value)
        return tuple(self._kind.convert(member, name, now) for member in members)


class IntegersKind(Kind):
    """A list of integers in a range; comma-separated on the command line."""

    metavar = "N,N..."

    def __init__(self, minimum: int = 0, maximum: int = INT64_MAX) -> None:
        self._member = IntegerKind(minimum, maximum)

    def convert(self, value: Any, name: str, now: int) -> tuple[int, ...]:
        members = value.split(",") if isinstance(value, str) else to_list_members(value)
        if members is None:
            raise wrong_value(f"{name} is not a list of integers", "a list of integers", value)
        return tuple(
            self._member.convert(member.strip() if isinstance(member, str) else member, name, now)
            for member in members
        )


class NumberKind(Kind):
    """A number in a range; if `is_above`, the range does not include `minimum`."""

    metavar = "X"

    def __init__(
        self, minimum: float, maximum: float = math.inf, *, is_above: bool = False
    ) -> None:
        self._minimum, self._maximum, self._is_above = minimum, maximum, is_above

    def convert(self, value: Any, name: str, now: int) -> float:  # noqa: ARG002
        number = math.nan
        if not isinstance(value, bool) and isinstance(value, str | Real):
            with suppress(ValueError, OverflowError):
                number = float(value)
        is_in_range = self._minimum <= number <= self._maximum and math.isfinite(number)
        if not is_in_range or (self._is_above and number == self._minimum):
            expected = f"a number {'above' if self._is_above else 'from'} {self._minimum:g}"
            if self._maximum != math.inf:
                expected += f" to {self._maximum:g}"
            raise wrong_value(f"{name} is not a number in the valid range", expected, value)
        return number


class DurationKind(Kind):
    """A positive duration: a `timedelta`, or text such as ``90s`` or ``5m``."""

    metavar = "DURATION"

    def convert(self, value: Any, name: str, now: int) -> timedelta:  # noqa: ARG002
        duration = value
        if isinstance(value, str):
            duration = timedelta(milliseconds=parse_duration_ms(value) or 0)
        if not isinstance(duration, timedelta) or duration <= timedelta():
            raise wrong_value(
                f"{name} is not a duration", "a duration such as 30s, 5m, 1h or 1d", value
            )
        return duration

    def options(self, parameter: Parameter, names: tuple[str, ...]) -> tuple[OptionSpec, ...]:
        """Return the option, with its default in seconds."""
        default = parameter.default
        default_text = f"{default.total_seconds():g}s" if isinstance(default, timedelta) else None
        return tuple(
            replace(option, default=default_text) for option in Kind.options(self, parameter, names)
        )


class TextKind(Kind):
    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    def convert(self, value: Any, name: str, now: int) -> str:  # noqa: ARG002
        if not isinstance(value, str):
            raise wrong_value(f"{name} is not a string", "a string", value)
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
        raise wrong_value(f"{name} is not a string or bytes", "a string or bytes", value)


class NamesKind(Kind):
    """A list of names; comma-separated on the command line."""

    metavar = "LIST"

    def __init__(self, choices: Sequence[str] = ()) -> None:
        self._choices = tuple(choices)

    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:  # noqa: ARG002
        if isinstance(value, str):
            members: list[object] | None = [member.strip() for member in value.split(",")]
        else:
            members = to_list_members(value)
        if members is None or not all(isinstance(member, str) for member in members):
            raise wrong_value(f"{name} is not a list of names", "a list of strings", value)
        names = tuple(str(member) for member in members if member)
        unknown = [member for member in names if self._choices and member not in self._choices]
        expected = ", ".join(self._choices) or "a name"
        if not names:
            raise wrong_value(f"{name} is empty", expected, value)
        if unknown:
            raise wrong_value(f"{name}: {unknown[0]} is not one of the choices", expected, value)
        return names


class TopicsKind(Kind):
    """Topics, converted to a pattern: a regular expression for full names, or a list of names."""

    metavar = "REGEX"
    completes = "topics"

    def convert(self, value: Any, name: str, now: int) -> re.Pattern[str] | None:  # noqa: ARG002
        return compile_topics(value, name)


class Moment(int):
    """A time in ms since the epoch, with the text from which it was parsed."""

    given: object

    @property
    def is_relative(self) -> bool:
        return is_relative(self.given)


class TimeKind(Kind):
    """A time, converted to ms since the epoch (`Moment`)."""

    metavar = "TIME"

    def convert(self, value: Any, name: str, now: int) -> Moment:
        with naming(name):
            timestamp = Moment(parse_time(value, now=now))
        timestamp.given = value
        return timestamp
