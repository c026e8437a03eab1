"""Objects of S3, Google Cloud Storage and Azure through obstore (the Rust crate object_store).

The library retries most failed requests; the others are retried here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from kafka_index.core.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    PublishError,
    ReadError,
    help_page,
)
from kafka_index.core.format.config import parse_integer
from kafka_index.core.fs import remote_file
from kafka_index.core.fs.remote_file import RemoteFile
from kafka_index.core.fs.store import (
    LISTING_SCHEMA,
    DirectoryEntry,
    FileInfo,
    StorageOptions,
    Store,
)
from kafka_index.core.fs.uris import OBJECT_SCHEMES, scheme_of, split_uri

if TYPE_CHECKING:
    from botocore.session import Session

#: Exceptions that obstore raises; FileNotFoundError is a built-in class.
LIBRARY_ERRORS = (exceptions.BaseError, OSError, ValueError)
_TOO_MANY = "429"
#: HTTP status for a range that starts at or after the end of an object.
BEYOND_END = "416"

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"(?:code|reason)\": \"(\w{1,64})\"")
_HOST = re.compile(r"https?://([A-Za-z0-9.\-\[\]:]{1,255})[/?]")
_SYSTEM = re.compile(r"kind: \w+,\s*message: \"([\w ]{1,80})\"")
_REPEATED = re.compile(r"HttpError \{\s*kind: (?:Connect|Request|Timeout)\b")
_LOOKUP = re.compile(r"dns error|failed to lookup address")
_TIMED_OUT = re.compile(r"TimedOut|operation timed out|deadline has elapsed|kind: Timeout")
_CERTIFICATE = re.compile(r"[Cc]ertificate")
#: The message of our own credential provider, when it fails inside the library.
_OWN = re.compile(r"ConfigError: ([^\n]{1,300})")
_REGION = re.compile(r"redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed")
#: Hosts from which instances, containers and nodes get their role.
_ROLES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata")
_NO_CREDENTIALS = re.compile(
    r"MissingAccessKeyId|MissingSecretAccessKey|MissingContainerCredentials|Missing\w*Credential"
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})

_NO_CREDENTIALS_TEXT = "no credentials were found"
_CREDENTIALS_HINT = (
    "set them where the store's own tools look for them (environment, profile), or run where a "
    f"role provides them; {help_page('storage')} has the order"
)

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a request failed.

    `text` follows "cannot read the object: ", and `hint` suggests a remedy. If `is_input`, the user
    gave something that does not exist or is not allowed. Otherwise the environment failed and the
    request is retriable.
    """

    text: str
    hint: str | None = None
    is_input: bool = False


def not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def is_not_found(error: Exception) -> bool:
    """Return whether an object is missing, rather than its bucket."""
    if not isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return False
    return _first(_CODE, str(error)) not in _NO_BUCKET


def is_worth_repeating(error: Exception) -> bool:
    """Return whether a retriable request was not retried by the library.

    The library retries requests that could not be sent, safe requests that timed out, and 5xx
    responses. It does not retry broken connections or status 429.
    """
    text = str(error)
    return (
        isinstance(error, exceptions.GenericError)
        and _first(_STATUS, text) in {None, _TOO_MANY}
        and not _REPEATED.search(text)
        and _of_settings(text, _first(_HOST, text), None, "") is None
    )


def read_error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> KafkaIndexError:
    """Convert the error of a request that reads an object, a prefix or a store.

    `action` follows "cannot" in the message, as in ``"read the object"``.
    """
    reason = reason_of(error)
    kind = InputError if reason.is_input else ReadError
    return kind(
        f"cannot {action}: {reason.text}",
        path=path,
        position_bytes=position_bytes,
        hint=reason.hint,
    )


def publish_error(error: Exception, path: str, action: str) -> KafkaIndexError:
    """Convert the error of a request that writes; a missing bucket is not retriable."""
    reason = reason_of(error)
    kind = InputError if _first(_CODE, str(error)) in _NO_BUCKET else PublishError
    return kind(f"cannot {action}: {reason.text}", path=path, hint=reason.hint)


def no_credentials(root: str) -> ReadError:
    """Return the error for a store without credentials."""
    return ReadError(_NO_CREDENTIALS_TEXT, path=root, hint=_CREDENTIALS_HINT)


def open_error(error: Exception, root: str, refused: str | None) -> KafkaIndexError:
    """Convert the error of opening a store with this configuration.

    `refused` is the option whose name or value the library rejects.
    """
    if _NO_CREDENTIALS.search(str(error)):
        return read_error(error, root, "open the store")
    if refused is None:
        return ConfigError(
            "cannot open the store", path=root, hint="check the URI and the environment"
        )
    is_unknown = isinstance(error, exceptions.UnknownConfigurationKeyError)
    return ConfigError(
        f"unknown storage option {refused}"
        if is_unknown
        else f"the storage option {refused} has a value that is not valid",
        path=root,
        hint=f"{help_page('storage')} has the options",
    )


def reason_of(error: Exception) -> Reason:
    text = str(error)
    status, code, host = _first(_STATUS, text), _first(_CODE, text), _first(_HOST, text)
    answer = " ".join(part for part in (status, code) if part)
    return (
        _of_settings(text, host, code, answer)
        or _of_answer(error, host, answer)
        or _of_connection(text, host)
    )


def _of_settings(text: str, host: str | None, code: str | None, answer: str) -> Reason | None:
    """Return the reason if credentials, region, bucket or endpoint are wrong."""
    own = _first(_OWN, text)
    if own is not None:
        return Reason(own)
    if _NO_CREDENTIALS.search(text) or (host is not None and host.split(":")[0] in _ROLES):
        return Reason(_NO_CREDENTIALS_TEXT, _CREDENTIALS_HINT)
    if code in _NO_BUCKET:
        return Reason(
            f"the bucket or container does not exist ({answer})", "check the URI", is_input=True
        )
    if _REGION.search(text):
        return Reason(
            f"the bucket is in another region ({answer or 'redirected'})",
            "set AWS_REGION, or --storage-option region=NAME",
        )
    return None


def _of_answer(error: Exception, host: str | None, answer: str) -> Reason | None:
    """Return the reason if the store responded."""
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return Reason("it does not exist", "check the URI", is_input=True)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if denied or answer.startswith(("401", "403")):
        return Reason(
            f"the store denies access ({answer})" if answer else "the store denies access",
            "check the credentials and their permissions",
        )
    if isinstance(error, exceptions.NotSupportedError):
        return Reason("the store does not support it", is_input=True)
    if answer:
        again = None if answer.startswith("4") else "it was retried; run again later"
        return Reason(f"{host or 'the store'} answered {answer}", again)
    return None


def _of_connection(text: str, host: str | None) -> Reason:
    where = f"{host} " if host else "the store "
    hint = "check the endpoint (AWS_ENDPOINT_URL, --storage-option endpoint=URL) and the network"
    system = _first(_SYSTEM, text)
    if _LOOKUP.search(text):
        return Reason(f"{where}is not a known host", hint)
    if _TIMED_OUT.search(text):
        return Reason(f"{where}did not answer in time", hint)
    if _CERTIFICATE.search(text):
        return Reason(
            f"the certificate of {where}is not trusted", "name its authority in AWS_CA_BUNDLE"
        )
    if system is not None:
        return Reason(f"{where}cannot be reached: {system.lower()}", hint)
    return Reason(f"the connection to {where.strip()} failed", hint)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else next((group for group in match.groups() if group), match[0])


def repeated(request: Callable[[], _Answer]) -> _Answer:
    """Return the result of a request; retry it if the library did not.

    All requests here are idempotent. Raises the library's exceptions.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return request()
        except LIBRARY_ERRORS as error:
            if not is_worth_repeating(error):
                raise
            time.sleep(_FIRST_WAIT_SECONDS * 2**attempt)
    return request()


#: Connection options that apply to every store.
CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_PREFIXES = {"s3": "aws_", "gcs": "google_", "azure": "azure_"}
_STORES = {"s3": S3Store, "gcs": GCSStore, "azure": AzureStore}

# Timeouts for one request, and for a pause within a response.
_TIMEOUTS = {"timeout": "120s", "read_timeout": "30s"}
# While a large body is sent, no response can be read.
_UPLOAD_TIMEOUTS = {"timeout": "1h"}
_RETRIES = 10
_RETRY_SECONDS = 120
# Each wait is random, between the initial backoff and three times the previous wait; at most about
# 30 s in total.
_BACKOFF = {
    "init_backoff": timedelta(milliseconds=100),
    "max_backoff": timedelta(seconds=10),
    "base": 3,
}

_METADATA = ("169.254.169.254", 80)
_METADATA_SECONDS = 2.0

# Settings that contain the endpoint, in order of precedence.
_S3_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\-\[\]:]+(?:/[\w./~%-]*)?")
# If the environment contains one of these, AWS tools ignore the shared files.
_S3_CREDENTIALS = (
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
)

# Tools that refresh credentials rewrite the file.
_READ_AGAIN = timedelta(minutes=5)
# For these sources, the library itself reads the environment or requests the role.
_NOT_OF_PROFILES = ("env", "container-role", "iam-role")


@dataclass
class ObjectConfig:
    """The arguments of the library's store.

    Settings have the library's names with their prefix. `provider` returns credentials; None if the
    library finds them itself.
    """

    store: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)
    provider: Any = None
    max_retries: int = _RETRIES
    retry_seconds: int = _RETRY_SECONDS

    @classmethod
    def load(cls, root: str, options: StorageOptions) -> ObjectConfig:
        """Load the configuration of a store; options take precedence over the environment.

        Raises `ConfigError` if an option or a profile is invalid, `InputError` if the file of a
        secret cannot be read, and `ReadError` if there are no credentials.
        """
        kind = OBJECT_SCHEMES[scheme_of(root) or ""]
        config = cls()
        profile = None
        for key, value in options.resolve().items():
            if key in CLIENT_OPTIONS:
                config.client[key] = value
            elif key == "max_retries":
                config.max_retries = _number(key, value)
            elif key == "retry_timeout":
                config.retry_seconds = _number(key, value.removesuffix("s"))
            elif key in {"profile", "aws_profile"}:
                profile = value
            elif key.startswith(_PREFIXES[kind]):
                config.store[key] = value
            elif "." not in key and not key.startswith(tuple(_PREFIXES.values())):
                config.store[_PREFIXES[kind] + key] = value
        if kind == "s3":
            config._complete_s3(root, profile)
        return config

    def _complete_s3(self, root: str, profile_name: str | None) -> None:
        """Add settings that AWS's own tools read and the library does not."""
        known = {**_environment(), **self.store}
        profile = find_profile(profile_name)
        if profile is not None:
            if profile.region and not (known.get("aws_region") or known.get("aws_default_region")):
                self.store["aws_region"] = profile.region
            if profile.endpoint_url and not any(known.get(key) for key in _S3_ENDPOINTS):
                self.store["aws_endpoint"] = profile.endpoint_url
        has_credentials = any(known.get(key) for key in _S3_CREDENTIALS)
        if profile_name is not None or not has_credentials:
            self.provider = None if profile is None else profile.provider()
            if self.provider is None and not has_credentials and not _has_role(known):
                raise no_credentials(root)
        known = {**_environment(), **self.store}
        endpoint = next((known[key] for key in _S3_ENDPOINTS if known.get(key)), "")
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            # The library panics if the endpoint is not a URL.
            raise ConfigError(
                "the endpoint is not a URL", path=root, expected="https://host or https://host:port"
            )
        if endpoint.startswith("http://"):
            # A plain HTTP endpoint implies allow_http, as in AWS's own tools.
            self.client.setdefault("allow_http", "true")
        bundle = os.environ.get("AWS_CA_BUNDLE")
        if bundle:
            self.client.setdefault("root_certificate", _certificate(bundle))

    def open(self, root: str, *, for_uploads: bool = False) -> Any:
        """Open the library's store for a root such as ``s3://bucket``, or one for large uploads.

        Raises `ConfigError` if an option is unknown or the URI is not a store, and `ReadError` if
        the credentials are incomplete.
        """
        client = {**_TIMEOUTS, **self.client}
        if for_uploads:
            kept = {key: value for key, value in self.client.items() if key not in _TIMEOUTS}
            client = {**_UPLOAD_TIMEOUTS, **kept}
        try:
            return self._from_url(root, self.store, client)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise open_error(error, root, self._refused(root)) from None

    def shared(self) -> dict[str, str]:
        """Return all settings with the current credentials, for a library with the same names."""
        found = {} if self.provider is None else self.provider()
        names = ("access_key_id", "secret_access_key", "token")
        keys = {f"aws_{name}": found[name] for name in names if found.get(name)}
        return {**self.store, **self.client, **keys}

    def _from_url(self, root: str, store: dict[str, str], client: dict[str, str]) -> Any:
        return _STORES[OBJECT_SCHEMES[scheme_of(root) or ""]].from_url(
            _library_uri(root),
            config=store or None,
            client_options=client or None,
            retry_config={
                "max_retries": self.max_retries,
                "retry_timeout": timedelta(seconds=self.retry_seconds),
                "backoff": _BACKOFF,
            },
            credential_provider=self.provider,
        )

    def _refused(self, root: str) -> str | None:
        """Return the option whose value the library rejects, found by testing each option."""
        for key, value in [*self.store.items(), *self.client.items()]:
            option = {key: value}
            is_client = key in CLIENT_OPTIONS
            try:
                self._from_url(root, {} if is_client else option, option if is_client else {})
            except (exceptions.BaseError, ValueError, TypeError):
                return key
        return None


def _environment() -> Mapping[str, str]:
    return {key.lower(): value for key, value in os.environ.items() if key.startswith("AWS_")}


def _has_role(known: Mapping[str, str]) -> bool:
    """Return whether the instance has a role; the library would retry for minutes to find out."""
    if known.get("aws_ec2_metadata_disabled", "").lower() == "true":
        return False
    if "aws_metadata_endpoint" in known:
        return True
    try:
        socket.create_connection(_METADATA, timeout=_METADATA_SECONDS).close()
    except OSError:
        return False
    return True


def _library_uri(root: str) -> str:
    """Convert wasb(s), Hadoop's older name of abfs(s), which the library does not support."""
    scheme, _, authority = root.partition("://")
    if scheme.lower() not in {"wasb", "wasbs"}:
        return root
    return f"abfss://{authority.replace('.blob.', '.dfs.', 1)}"


def _number(key: str, value: str) -> int:
    number = parse_integer(value)
    if number is None or number < 0:
        raise ConfigError(
            f"the storage option {key} is not a number",
            expected="an integer of 0 or more",
            found=value,
        )
    return number


def _certificate(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read AWS_CA_BUNDLE: {error.strerror}", path=path) from error


class Credential(TypedDict):
    """A credential in the form that the library expects."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class Profile:
    """A profile of the AWS shared files, merged from both files."""

    name: str | None
    region: str | None
    endpoint_url: str | None

    def provider(self) -> Callable[[], Credential] | None:
        """Return the credential provider of the profile, None if it has none.

        Raises `ConfigError` if it needs boto3 and boto3 is not installed.
        """
        try:
            credentials = self._load()
        except ConfigError as error:
            raise ReadError(error.message, path=error.path) from None
        if credentials is None:
            return None

        def current() -> Credential:
            nonlocal credentials
            # boto3 refreshes only expiring credentials, and never rereads static keys.
            if not hasattr(credentials, "refresh_needed"):
                credentials = self._load()
            with _errors_of(self.name):
                frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + _READ_AGAIN,
            }

        return current

    def _load(self) -> Any:
        with _errors_of(self.name):
            resolver = _session(self.name).get_component("credential_provider")
            for each in _NOT_OF_PROFILES:
                resolver.remove(each)
            return resolver.load_credentials()


def find_profile(name: str | None) -> Profile | None:
    """Return a profile of the AWS shared files; None if there is no default profile.

    The default name is AWS_PROFILE, then AWS_DEFAULT_PROFILE, then ``default``. Raises
    `ConfigError` if a named profile does not exist or a file cannot be parsed.
    """
    named = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if named is None and not any(map(os.path.exists, (_config_path(), _credentials_path()))):
        return None
    with _errors_of(named):
        settings = _session(named).get_scoped_config()
    if not settings and named is None:
        return None
    return Profile(named, settings.get("region"), settings.get("endpoint_url"))


def _session(name: str | None) -> Session:
    from botocore.session import Session  # noqa: PLC0415, slow to import

    return Session(profile=name)


@contextmanager
def _errors_of(name: str | None) -> Iterator[None]:
    """Convert errors of boto3; their messages may contain the secret and are not shown."""
    try:
        from botocore import exceptions  # noqa: PLC0415, an extra
    except ImportError as error:
        raise ConfigError(
            "profiles of AWS are read by boto3, which is not installed",
            path=_config_path(),
            hint="pip install 'kafka-index[s3]', or export the credentials to the environment "
            "(aws configure export-credentials --format env)",
        ) from error
    profile = f"the AWS profile {name or 'default'}"
    try:
        yield
    except exceptions.ProfileNotFound:
        raise ConfigError(
            f"{profile} does not exist",
            path=_config_path(),
            hint="aws configure list-profiles lists the existing profiles",
        ) from None
    except exceptions.ConfigParseError as error:
        raise ConfigError("not a settings file of AWS", path=error.kwargs["path"]) from None
    except (
        exceptions.BotoCoreError,
        exceptions.ClientError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ) as error:
        raise ConfigError(
            f"{profile} gave no credentials: {type(error).__name__}", path=_config_path()
        ) from None


def _config_path() -> str:
    return os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")


def _credentials_path() -> str:
    return os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")


# The page size of S3. After a broken connection, a listing resumes at the last page.
_ROWS_OF_PAGE = 1000
# Sending a larger body can take longer than the read timeout.
_MAX_QUICK_PUT_BYTES = 4 << 20
# Maximum body size of one S3 request.
_MAX_PUT_BYTES = 5 << 30
#: Maximum age of an object that an unanswered request may have written.
JUST_WRITTEN_S = 3600.0
_SECOND_NS = 1_000_000_000
# The ETag of an object that was just put is requested soon afterwards.
_MAX_WRITTEN = 16384


class ObjectStore(Store):
    """A bucket or container, with a root such as ``s3://bucket``.

    Options take precedence over the environment. Raises `ConfigError` if either is invalid.
    """

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self._config = ObjectConfig.load(root, options)
        self._store = self._config.open(root)
        self._written: OrderedDict[str, FileInfo] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _upload_store(self) -> Any:
        return self._config.open(self._root, for_uploads=True)

    def info(self, path: str) -> FileInfo:
        try:
            return self._info(repeated(lambda: obstore.head(self._store, _key(path))))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            raise read_error(error, path, "read the object") from None

    def open(self, path: str, info: FileInfo | None = None) -> RemoteObject:
        """Open an object in the version given by `info`."""
        try:
            found = self.info(path) if info is None else info
        except FileNotFoundError as error:
            raise InputError("cannot open the object: it does not exist", path=path) from error
        return RemoteObject(self._store, found)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            return bytes(repeated(lambda: self._get(path, max_bytes)))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            if max_bytes is not None and f"status code: {BEYOND_END}" in str(error):
                return b""
            raise read_error(error, path, "read the object") from None

    def _get(self, path: str, max_bytes: int | None) -> Any:
        if max_bytes is None:
            return obstore.get(self._store, _key(path)).bytes()
        return obstore.get_range(self._store, _key(path), start=0, length=max_bytes)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the objects and common prefixes directly below a prefix."""
        try:
            found = repeated(lambda: obstore.list_with_delimiter(self._store, _key(path) or None))
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        entries = [
            DirectoryEntry(f"{self._root}/{prefix}", is_directory=True)
            for prefix in found["common_prefixes"]
        ]
        key = _key(path)
        for each in found["objects"]:
            if each["path"] == key:
                continue  # An empty object "key/" that other tools create as a directory marker.
            info = self._info(each)
            entries.append(
                DirectoryEntry(
                    info.path,
                    size_bytes=info.size_bytes,
                    mtime_ns=info.mtime_ns,
                    version=info.version,
                )
            )
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the objects below a prefix in order of path, after listing all of them.

        Directory markers of other tools (``key/``) are rows with the path ``key``. The full listing
        is needed because S3 directory buckets and hierarchical Azure storage do not sort.
        """
        prefix = _key(path)
        below = f"{prefix}/" if prefix else ""
        last: str | None = None
        found: list[pa.RecordBatch] = []

        def following() -> tuple[Any, pa.RecordBatch | None]:
            pages = obstore.list(
                self._store,
                prefix or None,
                offset=last,
                chunk_size=_ROWS_OF_PAGE,
                return_arrow=True,
            )
            return pages, next(pages, None)

        try:
            pages, page = repeated(following)
            while page is not None:
                rows = pa.record_batch(page)
                if rows.num_rows:
                    last = rows["path"][-1].as_py()
                    found.append(_rows(rows, len(below)))
                try:
                    page = next(pages, None)
                except LIBRARY_ERRORS as error:
                    if not is_worth_repeating(error):
                        raise
                    if not _are_sorted(found):
                        found.clear()
                        last = None
                    # Resume after the last received page.
                    pages, page = repeated(following)
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        if not _are_sorted(found):
            found = pa.Table.from_batches(found).sort_by("path").to_batches(_ROWS_OF_PAGE)
        found.reverse()
        while found:
            yield found.pop()

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Put an object atomically with one request.

        A retried request may find the object of its first attempt: an object with the same bytes
        that is younger than an hour counts as written.
        """
        size = memoryview(data).nbytes
        store = self._store if size <= _MAX_QUICK_PUT_BYTES else self._upload_store
        try:
            put = repeated(
                lambda: obstore.put(
                    store,
                    _key(path),
                    data,
                    mode="create" if if_absent else "overwrite",
                    use_multipart=size > _MAX_PUT_BYTES,
                )
            )
        except exceptions.AlreadyExistsError:
            return self._holds(path, data, size, within_s=JUST_WRITTEN_S)
        except LIBRARY_ERRORS as error:
            raise publish_error(error, path, "write the object") from None
        if put["e_tag"]:
            with self._lock:
                self._written[path] = FileInfo(path, size, 0, _quoted(put["e_tag"]))
                while len(self._written) > _MAX_WRITTEN:
                    self._written.popitem(last=False)
        return True

    def pop_written(self, path: str) -> FileInfo | None:
        """Return size and ETag of an object that was just put, once."""
        with self._lock:
            return self._written.pop(path, None)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write an object if it still has the ETag of `info`; the store compares them."""
        mode = {"e_tag": info.version}
        try:
            repeated(
                lambda: obstore.put(self._store, _key(path), data, mode=mode, use_multipart=False)
            )
        except (exceptions.PreconditionError, FileNotFoundError):
            # A retried request may find the object of its first attempt.
            return self._holds(path, data, len(data))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return False
            raise publish_error(error, path, "write the object") from None
        return True

    def rename(self, source: str, target: str) -> None:
        """Copy an object on the server, then delete the source."""
        try:
            repeated(lambda: obstore.copy(self._store, _key(source), _key(target), overwrite=True))
        except LIBRARY_ERRORS as error:
            raise publish_error(error, target, "put the object in place") from None
        self.delete([source])

    def delete(self, paths: Iterable[str]) -> None:
        keys = [_key(path) for path in paths]
        try:
            if keys:
                repeated(lambda: self._delete(keys))
        except LIBRARY_ERRORS as error:
            raise publish_error(error, f"{self._root}/{keys[0]}", "delete the object") from None

    def _delete(self, keys: list[str]) -> None:
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            # Stores without bulk delete stop at the first missing object.
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _holds(
        self, path: str, data: bytes | memoryview, size: int, within_s: float | None = None
    ) -> bool:
        """Return whether an object has these bytes and is not older than `within_s`."""
        try:
            found = self.info(path)
            if within_s is not None and found.mtime_ns < (time.time() - within_s) * _SECOND_NS:
                return False
            return found.size_bytes == size and self.read(path) == data
        except FileNotFoundError:
            return False

    def _info(self, meta: Any) -> FileInfo:
        # Whole seconds, since HEAD responses have no fractions.
        return FileInfo(
            f"{self._root}/{meta['path']}",
            meta["size"],
            int(meta["last_modified"].timestamp()) * _SECOND_NS,
            _quoted(meta["e_tag"] or ""),
        )


def _rows(page: pa.RecordBatch, skipped: int) -> pa.RecordBatch:
    """Convert a page of the library to `LISTING_SCHEMA`, relative to the listed prefix."""
    # The placeholder object of the listed directory itself is skipped.
    page = page.filter(pc.greater_equal(pc.utf8_length(page["path"].cast(pa.string())), skipped))
    seconds = page["last_modified"].cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    return pa.record_batch(
        [
            pc.utf8_slice_codeunits(page["path"].cast(pa.string()), skipped),
            page["size"].cast(pa.int64()),
            pc.multiply(seconds, _SECOND_NS),
            _all_quoted(page["e_tag"].cast(pa.string()).fill_null("")),
        ],
        schema=LISTING_SCHEMA,
    )


def _are_sorted(pages: Sequence[pa.RecordBatch]) -> bool:
    """Return whether the pages are in ascending order of path."""
    before = ""
    for page in pages:
        paths = page["path"]
        if not len(paths):
            continue
        if paths[0].as_py().encode() < before.encode():
            return False
        if pc.any(pc.less(paths[1:], paths[:-1])).as_py():
            return False
        before = paths[-1].as_py()
    return True


def _quoted(e_tag: str) -> str:
    """Return a quoted ETag, as in HTTP headers; Azure's listings omit the quotes."""
    return f'"{e_tag}"' if e_tag and not e_tag.endswith('"') else e_tag


def _all_quoted(e_tags: pa.Array) -> pa.Array:
    if pc.all(pc.ends_with(e_tags, '"')).as_py():
        return e_tags
    return pa.array(map(_quoted, e_tags.to_pylist()), pa.string())


def _key(path: str) -> str:
    return split_uri(path)[1]


class RemoteObject(RemoteFile):
    _NOUN = "object"
    _WRONG_LENGTH = "the store returned another number of bytes"

    def __init__(self, store: Any, info: FileInfo) -> None:
        super().__init__(info)
        self._store = store
        self._key = split_uri(info.path)[1]

    def changed(self) -> str | None:
        """Return how the object changed since it was opened, None if it did not."""
        try:
            now = repeated(lambda: obstore.head(self._store, self._key))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return "it was removed"
            raise read_error(error, self.path, "read the object") from None
        if now["size"] != self.size_bytes or (now["e_tag"] or "") != self._info.version:
            return "it was replaced"
        return None

    def _request(self, position_bytes: int, size_bytes: int) -> memoryview:
        options: dict[str, Any] = {"range": (position_bytes, position_bytes + size_bytes)}
        if self._info.version:
            options["if_match"] = self._info.version
        try:
            with remote_file.request_slots:
                return cast("memoryview", repeated(lambda: self._get(options)))
        except exceptions.PreconditionError:
            raise self._changed_error("it was replaced", position_bytes) from None
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise self._changed_error("it was removed", position_bytes) from None
            if BEYOND_END in reason_of(error).text:
                raise self._changed_error("it was truncated", position_bytes) from None
            raise read_error(error, self.path, "read the object", position_bytes) from None

    def _get(self, options: dict[str, Any]) -> Any:
        return obstore.get(self._store, self._key, options=options).bytes()
