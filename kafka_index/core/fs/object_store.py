"""Objects of S3, Google Cloud Storage and Azure through obstore (the Rust crate object_store).

The library retries most failed requests; this module retries the other retriable requests.
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
_TOO_MANY_REQUESTS = "429"
#: HTTP status for a range that starts at or after the end of an object.
BEYOND_END = "416"

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"(?:code|reason)\": \"(\w{1,64})\"")
_HOST = re.compile(r"https?://([A-Za-z0-9.\-\[\]:]{1,255})[/?]")
_SYSTEM_ERROR = re.compile(r"kind: \w+,\s*message: \"([\w ]{1,80})\"")
_RETRIED_BY_LIBRARY = re.compile(r"HttpError \{\s*kind: (?:Connect|Request|Timeout)\b")
_DNS_ERROR = re.compile(r"dns error|failed to lookup address")
_TIMED_OUT = re.compile(r"TimedOut|operation timed out|deadline has elapsed|kind: Timeout")
_CERTIFICATE = re.compile(r"[Cc]ertificate")
#: The message of our own credential provider, if the provider fails inside the library.
_PROVIDER_ERROR = re.compile(r"ConfigError: ([^\n]{1,300})")
_WRONG_REGION = re.compile(
    r"redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed"
)
#: Hosts from which instances, containers and Kubernetes nodes get the credentials of their role.
_ROLE_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata")
_NO_CREDENTIALS = re.compile(
    r"MissingAccessKeyId|MissingSecretAccessKey|MissingContainerCredentials|Missing\w*Credential"
)
_MISSING_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})

_NO_CREDENTIALS_TEXT = "no credentials were found"
_CREDENTIALS_HINT = (
    "set credentials in the environment or a profile, or run on a host with a role; "
    f"see {help_page('storage')} for the order"
)

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2
_Response = TypeVar("_Response")


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
    """Return whether the error reports a missing object, rather than a missing bucket."""
    if not isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return False
    return _first_match(_CODE, str(error)) not in _MISSING_BUCKET_CODES


def should_retry(error: Exception) -> bool:
    """Return whether a failed request is retriable and was not retried by the library.

    The library retries requests that could not be sent, safe requests that timed out, and 5xx
    responses. It does not retry broken connections or status 429.
    """
    message = str(error)
    return (
        isinstance(error, exceptions.GenericError)
        and _first_match(_STATUS, message) in {None, _TOO_MANY_REQUESTS}
        and not _RETRIED_BY_LIBRARY.search(message)
        and _find_settings_error(message, _first_match(_HOST, message), None, "") is None
    )


def read_error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> KafkaIndexError:
    """Convert the error of a request that reads an object, a prefix or a store.

    `action` follows "cannot" in the message, as in ``"read the object"``.
    """
    reason = find_reason(error)
    error_type = InputError if reason.is_input else ReadError
    return error_type(
        f"cannot {action}: {reason.text}",
        path=path,
        position_bytes=position_bytes,
        hint=reason.hint,
    )


def publish_error(error: Exception, path: str, action: str) -> KafkaIndexError:
    """Convert the error of a request that writes; a missing bucket is not retriable."""
    reason = find_reason(error)
    error_type = (
        InputError if _first_match(_CODE, str(error)) in _MISSING_BUCKET_CODES else PublishError
    )
    return error_type(f"cannot {action}: {reason.text}", path=path, hint=reason.hint)


def no_credentials(root: str) -> ReadError:
    """Return the error for a store without credentials."""
    return ReadError(_NO_CREDENTIALS_TEXT, path=root, hint=_CREDENTIALS_HINT)


def open_error(error: Exception, root: str, option: str | None) -> KafkaIndexError:
    """Convert the error of opening a store.

    `option` is the option whose name or value the library rejects.
    """
    if _NO_CREDENTIALS.search(str(error)):
        return read_error(error, root, "open the store")
    if option is None:
        return ConfigError(
            "cannot open the store", path=root, hint="check the URI and the environment"
        )
    is_unknown = isinstance(error, exceptions.UnknownConfigurationKeyError)
    return ConfigError(
        f"unknown storage option {option}"
        if is_unknown
        else f"the value of the storage option {option} is not valid",
        path=root,
        hint=f"see {help_page('storage')} for the options",
    )


def find_reason(error: Exception) -> Reason:
    message = str(error)
    status, code, host = (
        _first_match(_STATUS, message),
        _first_match(_CODE, message),
        _first_match(_HOST, message),
    )
    response = " ".join(part for part in (status, code) if part)
    return (
        _find_settings_error(message, host, code, response)
        or _find_response_error(error, host, response)
        or _describe_connection_error(message, host)
    )


def _find_settings_error(
    message: str, host: str | None, code: str | None, response: str
) -> Reason | None:
    """Return the reason if credentials are missing, or the bucket or region is wrong, else None."""
    provider_error = _first_match(_PROVIDER_ERROR, message)
    if provider_error is not None:
        return Reason(provider_error)
    if _NO_CREDENTIALS.search(message) or (host is not None and host.split(":")[0] in _ROLE_HOSTS):
        return Reason(_NO_CREDENTIALS_TEXT, _CREDENTIALS_HINT)
    if code in _MISSING_BUCKET_CODES:
        return Reason(
            f"the bucket or container does not exist ({response})", "check the URI", is_input=True
        )
    if _WRONG_REGION.search(message):
        return Reason(
            f"the bucket is in another region ({response or 'redirected'})",
            "set AWS_REGION, or --storage-option region=NAME",
        )
    return None


def _find_response_error(error: Exception, host: str | None, response: str) -> Reason | None:
    """Return the reason from the response of the store; None without a response."""
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return Reason("the object does not exist", "check the URI", is_input=True)
    is_denied = isinstance(
        error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
    )
    if is_denied or response.startswith(("401", "403")):
        return Reason(
            f"the store denies access ({response})" if response else "the store denies access",
            "check the credentials and their permissions",
        )
    if isinstance(error, exceptions.NotSupportedError):
        return Reason("the store does not support this request", is_input=True)
    if response:
        hint = None if response.startswith("4") else "the request was retried; run again later"
        return Reason(f"{host or 'the store'} responded with {response}", hint)
    return None


def _describe_connection_error(message: str, host: str | None) -> Reason:
    host_name = host or "the store"
    hint = "check the endpoint (AWS_ENDPOINT_URL, --storage-option endpoint=URL) and the network"
    system_error = _first_match(_SYSTEM_ERROR, message)
    if _DNS_ERROR.search(message):
        return Reason(f"{host_name} is not a known host", hint)
    if _TIMED_OUT.search(message):
        return Reason(f"{host_name} did not respond in time", hint)
    if _CERTIFICATE.search(message):
        return Reason(
            f"the certificate of {host_name} is not trusted",
            "set AWS_CA_BUNDLE to a file with the certificate authority",
        )
    if system_error is not None:
        return Reason(f"{host_name} cannot be reached: {system_error.lower()}", hint)
    return Reason(f"the connection to {host_name} failed", hint)


def _first_match(pattern: re.Pattern[str], message: str) -> str | None:
    match = pattern.search(message)
    return None if match is None else next((group for group in match.groups() if group), match[0])


def retry(request: Callable[[], _Response]) -> _Response:
    """Return the result of a request, which is retried if the library did not retry it.

    All requests of this module are idempotent. Raises the library's exceptions.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return request()
        except LIBRARY_ERRORS as error:
            if not should_retry(error):
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

_METADATA_ADDRESS = ("169.254.169.254", 80)
_METADATA_TIMEOUT_S = 2.0

# Settings that contain the endpoint, in order of precedence.
_S3_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\-\[\]:]+(?:/[\w./~%-]*)?")
# If the environment contains any of these settings, AWS tools ignore the shared files.
_S3_CREDENTIALS = (
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
)

# Credentials are loaded again after this time, because tools that refresh them rewrite the shared
# files.
_CREDENTIALS_TTL = timedelta(minutes=5)
# For these sources, the library itself reads the environment or requests the role.
_NON_PROFILE_SOURCES = ("env", "container-role", "iam-role")


@dataclass
class ObjectConfig:
    """The arguments of the library's store.

    Settings have the library's names with their prefix. `provider` returns credentials; None if the
    library finds credentials itself.
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
        provider = OBJECT_SCHEMES[scheme_of(root) or ""]
        config = cls()
        profile = None
        for key, value in options.resolve().items():
            if key in CLIENT_OPTIONS:
                config.client[key] = value
            elif key == "max_retries":
                config.max_retries = _parse_number(key, value)
            elif key == "retry_timeout":
                config.retry_seconds = _parse_number(key, value.removesuffix("s"))
            elif key in {"profile", "aws_profile"}:
                profile = value
            elif key.startswith(_PREFIXES[provider]):
                config.store[key] = value
            elif "." not in key and not key.startswith(tuple(_PREFIXES.values())):
                config.store[_PREFIXES[provider] + key] = value
        if provider == "s3":
            config._complete_s3(root, profile)
        return config

    def _complete_s3(self, root: str, profile_name: str | None) -> None:
        """Add settings that AWS's own tools read and the library does not."""
        settings = {**_read_aws_environment(), **self.store}
        profile = find_profile(profile_name)
        if profile is not None:
            if profile.region and not (
                settings.get("aws_region") or settings.get("aws_default_region")
            ):
                self.store["aws_region"] = profile.region
            if profile.endpoint_url and not any(settings.get(key) for key in _S3_ENDPOINTS):
                self.store["aws_endpoint"] = profile.endpoint_url
        has_credentials = any(settings.get(key) for key in _S3_CREDENTIALS)
        if profile_name is not None or not has_credentials:
            self.provider = None if profile is None else profile.provider()
            if self.provider is None and not has_credentials and not _has_role(settings):
                raise no_credentials(root)
        settings = {**_read_aws_environment(), **self.store}
        endpoint = next((settings[key] for key in _S3_ENDPOINTS if settings.get(key)), "")
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
            self.client.setdefault("root_certificate", _read_certificates(bundle))

    def open(self, root: str, *, for_uploads: bool = False) -> Any:
        """Open the library's store for a root such as ``s3://bucket``.

        With `for_uploads`, requests have the long timeout of large uploads.

        Raises `ConfigError` if an option is unknown or the URI is not a store, and `ReadError` if
        the credentials are incomplete.
        """
        client = {**_TIMEOUTS, **self.client}
        if for_uploads:
            client_options = {
                key: value for key, value in self.client.items() if key not in _TIMEOUTS
            }
            client = {**_UPLOAD_TIMEOUTS, **client_options}
        try:
            return self._from_url(root, self.store, client)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise open_error(error, root, self._find_rejected_option(root)) from None

    def settings_with_credentials(self) -> dict[str, str]:
        """Return all settings and current credentials, for a library with the same options."""
        credentials = {} if self.provider is None else self.provider()
        names = ("access_key_id", "secret_access_key", "token")
        secrets = {f"aws_{name}": credentials[name] for name in names if credentials.get(name)}
        return {**self.store, **self.client, **secrets}

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

    def _find_rejected_option(self, root: str) -> str | None:
        """Return the option whose value the library rejects, found by testing each option."""
        for key, value in [*self.store.items(), *self.client.items()]:
            option = {key: value}
            is_client = key in CLIENT_OPTIONS
            try:
                self._from_url(root, {} if is_client else option, option if is_client else {})
            except (exceptions.BaseError, ValueError, TypeError):
                return key
        return None


def _read_aws_environment() -> Mapping[str, str]:
    return {key.lower(): value for key, value in os.environ.items() if key.startswith("AWS_")}


def _has_role(settings: Mapping[str, str]) -> bool:
    """Return whether the instance may have a role; the library would retry for minutes."""
    if settings.get("aws_ec2_metadata_disabled", "").lower() == "true":
        return False
    if "aws_metadata_endpoint" in settings:
        return True
    try:
        socket.create_connection(_METADATA_ADDRESS, timeout=_METADATA_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _library_uri(root: str) -> str:
    """Convert wasb(s), Hadoop's older name of abfs(s), which the library does not support."""
    scheme, _, authority = root.partition("://")
    if scheme.lower() not in {"wasb", "wasbs"}:
        return root
    return f"abfss://{authority.replace('.blob.', '.dfs.', 1)}"


def _parse_number(key: str, value: str) -> int:
    number = parse_integer(value)
    if number is None or number < 0:
        raise ConfigError(
            f"the storage option {key} is not a number",
            expected="an integer of 0 or more",
            found=value,
        )
    return number


def _read_certificates(path: str) -> str:
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
    """An AWS profile, merged from the shared config and credentials files."""

    name: str | None
    region: str | None
    endpoint_url: str | None

    def provider(self) -> Callable[[], Credential] | None:
        """Return the credential provider of the profile, None without credentials.

        Raises `ReadError` if the credentials cannot be loaded, for example without boto3.
        """
        try:
            credentials = self._load_credentials()
        except ConfigError as error:
            raise ReadError(error.message, path=error.path) from None
        if credentials is None:
            return None

        def get_credential() -> Credential:
            nonlocal credentials
            # boto3 refreshes only expiring credentials, and never rereads static keys.
            if not hasattr(credentials, "refresh_needed"):
                credentials = self._load_credentials()
            with _converting_aws_errors(self.name):
                frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + _CREDENTIALS_TTL,
            }

        return get_credential

    def _load_credentials(self) -> Any:
        with _converting_aws_errors(self.name):
            resolver = _open_session(self.name).get_component("credential_provider")
            for source in _NON_PROFILE_SOURCES:
                resolver.remove(source)
            return resolver.load_credentials()


def find_profile(name: str | None) -> Profile | None:
    """Return a profile of the AWS shared files; None if there is no default profile.

    The default name is AWS_PROFILE, then AWS_DEFAULT_PROFILE, then ``default``. Raises
    `ConfigError` if a named profile does not exist or a file cannot be parsed.
    """
    profile_name = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if profile_name is None and not any(map(os.path.exists, (_config_path(), _credentials_path()))):
        return None
    with _converting_aws_errors(profile_name):
        settings = _open_session(profile_name).get_scoped_config()
    if not settings and profile_name is None:
        return None
    return Profile(profile_name, settings.get("region"), settings.get("endpoint_url"))


def _open_session(name: str | None) -> Session:
    from botocore.session import Session  # noqa: PLC0415, slow to import

    return Session(profile=name)


@contextmanager
def _converting_aws_errors(name: str | None) -> Iterator[None]:
    """Convert errors of boto3; their messages may contain the secret and are not shown."""
    try:
        from botocore import exceptions  # noqa: PLC0415, an extra
    except ImportError as error:
        raise ConfigError(
            "AWS profiles require boto3, which is not installed",
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
        raise ConfigError(
            "the file is not a valid AWS configuration file", path=error.kwargs["path"]
        ) from None
    except (
        exceptions.BotoCoreError,
        exceptions.ClientError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ) as error:
        raise ConfigError(
            f"{profile} provides no credentials: {type(error).__name__}", path=_config_path()
        ) from None


def _config_path() -> str:
    return os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")


def _credentials_path() -> str:
    return os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")


# The page size of S3. After a broken connection, a listing resumes at the last page.
_PAGE_ROWS = 1000
# Sending a larger body can take longer than the read timeout.
_MAX_SHORT_PUT_BYTES = 4 << 20
# Maximum body size of one S3 request.
_MAX_PUT_BYTES = 5 << 30
#: Maximum age of an object that an unanswered request may have written.
JUST_WRITTEN_S = 3600.0
_SECOND_NS = 1_000_000_000
# Maximum number of remembered puts: callers request the ETag of an object soon after its put.
_MAX_PUT_INFOS = 16384


class ObjectStore(Store):
    """A bucket or container, with a root such as ``s3://bucket``.

    Options take precedence over the environment. Raises `ConfigError` if either is invalid.
    """

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self._config = ObjectConfig.load(root, options)
        self._store = self._config.open(root)
        self._put_infos: OrderedDict[str, FileInfo] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _upload_store(self) -> Any:
        return self._config.open(self._root, for_uploads=True)

    def info(self, path: str) -> FileInfo:
        try:
            return self._to_file_info(retry(lambda: obstore.head(self._store, _object_key(path))))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            raise read_error(error, path, "read the object") from None

    def open(self, path: str, info: FileInfo | None = None) -> RemoteObject:
        """Open an object in the version given by `info`."""
        try:
            opened_info = self.info(path) if info is None else info
        except FileNotFoundError as error:
            raise InputError("cannot open the object: it does not exist", path=path) from error
        return RemoteObject(self._store, opened_info)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            return bytes(retry(lambda: self._request_bytes(path, max_bytes)))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            if max_bytes is not None and f"status code: {BEYOND_END}" in str(error):
                return b""
            raise read_error(error, path, "read the object") from None

    def _request_bytes(self, path: str, max_bytes: int | None) -> Any:
        if max_bytes is None:
            return obstore.get(self._store, _object_key(path)).bytes()
        return obstore.get_range(self._store, _object_key(path), start=0, length=max_bytes)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the objects and common prefixes directly below a prefix."""
        try:
            listing = retry(
                lambda: obstore.list_with_delimiter(self._store, _object_key(path) or None)
            )
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        entries = [
            DirectoryEntry(f"{self._root}/{prefix}", is_directory=True)
            for prefix in listing["common_prefixes"]
        ]
        key = _object_key(path)
        for meta in listing["objects"]:
            if meta["path"] == key:
                continue  # An empty object "key/" that other tools create as a directory marker.
            info = self._to_file_info(meta)
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
        prefix = _object_key(path)
        relative_prefix = f"{prefix}/" if prefix else ""
        last_key: str | None = None
        batches: list[pa.RecordBatch] = []

        def open_pages() -> tuple[Any, pa.RecordBatch | None]:
            pages = obstore.list(
                self._store,
                prefix or None,
                offset=last_key,
                chunk_size=_PAGE_ROWS,
                return_arrow=True,
            )
            return pages, next(pages, None)

        try:
            pages, page = retry(open_pages)
            while page is not None:
                rows = pa.record_batch(page)
                if rows.num_rows:
                    last_key = rows["path"][-1].as_py()
                    batches.append(_to_listing(rows, len(relative_prefix)))
                try:
                    page = next(pages, None)
                except LIBRARY_ERRORS as error:
                    if not should_retry(error):
                        raise
                    if not _are_sorted(batches):
                        batches.clear()
                        last_key = None
                    # Resume after the last received page.
                    pages, page = retry(open_pages)
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        if not _are_sorted(batches):
            batches = pa.Table.from_batches(batches).sort_by("path").to_batches(_PAGE_ROWS)
        batches.reverse()
        while batches:
            yield batches.pop()

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Put an object atomically with one request.

        With `if_absent`, a retried request may find the object that its first attempt has put. An
        existing object therefore counts as put if it has the same bytes and is younger than an
        hour.
        """
        size = memoryview(data).nbytes
        store = self._store if size <= _MAX_SHORT_PUT_BYTES else self._upload_store
        try:
            response = retry(
                lambda: obstore.put(
                    store,
                    _object_key(path),
                    data,
                    mode="create" if if_absent else "overwrite",
                    use_multipart=size > _MAX_PUT_BYTES,
                )
            )
        except exceptions.AlreadyExistsError:
            return self._has_content(path, data, size, within_s=JUST_WRITTEN_S)
        except LIBRARY_ERRORS as error:
            raise publish_error(error, path, "write the object") from None
        if response["e_tag"]:
            with self._lock:
                self._put_infos[path] = FileInfo(path, size, 0, _quote_e_tag(response["e_tag"]))
                while len(self._put_infos) > _MAX_PUT_INFOS:
                    self._put_infos.popitem(last=False)
        return True

    def pop_written(self, path: str) -> FileInfo | None:
        """Return and forget the size and ETag of an object that was just put."""
        with self._lock:
            return self._put_infos.pop(path, None)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Overwrite an object if it still has the ETag of `info`; the store checks the ETag."""
        mode = {"e_tag": info.version}
        try:
            retry(
                lambda: obstore.put(
                    self._store, _object_key(path), data, mode=mode, use_multipart=False
                )
            )
        except (exceptions.PreconditionError, FileNotFoundError):
            # A retried request may find the object that its first attempt has written.
            return self._has_content(path, data, len(data))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return False
            raise publish_error(error, path, "write the object") from None
        return True

    def rename(self, source: str, target: str) -> None:
        """Copy an object on the server, then delete the source."""
        try:
            retry(
                lambda: obstore.copy(
                    self._store, _object_key(source), _object_key(target), overwrite=True
                )
            )
        except LIBRARY_ERRORS as error:
            raise publish_error(error, target, "copy the object to its final name") from None
        self.delete([source])

    def delete(self, paths: Iterable[str]) -> None:
        keys = [_object_key(path) for path in paths]
        try:
            if keys:
                retry(lambda: self._delete_keys(keys))
        except LIBRARY_ERRORS as error:
            raise publish_error(error, f"{self._root}/{keys[0]}", "delete the object") from None

    def _delete_keys(self, keys: list[str]) -> None:
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            # Stores without bulk delete stop at the first missing object.
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _has_content(
        self, path: str, data: bytes | memoryview, size: int, within_s: float | None = None
    ) -> bool:
        """Return whether an object has these bytes and is not older than `within_s`."""
        try:
            info = self.info(path)
            if within_s is not None and info.mtime_ns < (time.time() - within_s) * _SECOND_NS:
                return False
            return info.size_bytes == size and self.read(path) == data
        except FileNotFoundError:
            return False

    def _to_file_info(self, meta: Any) -> FileInfo:
        # Times are truncated to seconds, because HEAD responses have no fractions.
        return FileInfo(
            f"{self._root}/{meta['path']}",
            meta["size"],
            int(meta["last_modified"].timestamp()) * _SECOND_NS,
            _quote_e_tag(meta["e_tag"] or ""),
        )


def _to_listing(page: pa.RecordBatch, prefix_length: int) -> pa.RecordBatch:
    """Convert a listing page to `LISTING_SCHEMA`, with paths relative to the listed prefix."""
    # Skip the placeholder object of the listed directory itself.
    page = page.filter(
        pc.greater_equal(pc.utf8_length(page["path"].cast(pa.string())), prefix_length)
    )
    seconds = page["last_modified"].cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    return pa.record_batch(
        [
            pc.utf8_slice_codeunits(page["path"].cast(pa.string()), prefix_length),
            page["size"].cast(pa.int64()),
            pc.multiply(seconds, _SECOND_NS),
            _quote_e_tags(page["e_tag"].cast(pa.string()).fill_null("")),
        ],
        schema=LISTING_SCHEMA,
    )


def _are_sorted(pages: Sequence[pa.RecordBatch]) -> bool:
    """Return whether the pages are in ascending order of path."""
    previous_path = ""
    for page in pages:
        paths = page["path"]
        if not len(paths):
            continue
        if paths[0].as_py().encode() < previous_path.encode():
            return False
        if pc.any(pc.less(paths[1:], paths[:-1])).as_py():
            return False
        previous_path = paths[-1].as_py()
    return True


def _quote_e_tag(e_tag: str) -> str:
    """Return a quoted ETag, as in HTTP headers; Azure's listings omit the quotes."""
    return f'"{e_tag}"' if e_tag and not e_tag.endswith('"') else e_tag


def _quote_e_tags(e_tags: pa.Array) -> pa.Array:
    if pc.all(pc.ends_with(e_tags, '"')).as_py():
        return e_tags
    return pa.array(map(_quote_e_tag, e_tags.to_pylist()), pa.string())


def _object_key(path: str) -> str:
    return split_uri(path)[1]


class RemoteObject(RemoteFile):
    _NOUN = "object"
    _WRONG_LENGTH = "the store returned an unexpected number of bytes"

    def __init__(self, store: Any, info: FileInfo) -> None:
        super().__init__(info)
        self._store = store
        self._object_key = split_uri(info.path)[1]

    def changed(self) -> str | None:
        """Return how the object changed since opening, such as ``removed``; None if unchanged."""
        try:
            current_meta = retry(lambda: obstore.head(self._store, self._object_key))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return "removed"
            raise read_error(error, self.path, "read the object") from None
        if (
            current_meta["size"] != self.size_bytes
            or (current_meta["e_tag"] or "") != self._info.version
        ):
            return "replaced"
        return None

    def _request(self, position_bytes: int, size_bytes: int) -> memoryview:
        options: dict[str, Any] = {"range": (position_bytes, position_bytes + size_bytes)}
        if self._info.version:
            options["if_match"] = self._info.version
        try:
            with remote_file.request_slots:
                return cast("memoryview", retry(lambda: self._request_bytes(options)))
        except exceptions.PreconditionError:
            raise self._change_error("replaced", position_bytes) from None
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise self._change_error("removed", position_bytes) from None
            if BEYOND_END in find_reason(error).text:
                raise self._change_error("truncated", position_bytes) from None
            raise read_error(error, self.path, "read the object", position_bytes) from None

    def _request_bytes(self, options: dict[str, Any]) -> Any:
        return obstore.get(self._store, self._object_key, options=options).bytes()
