"""The configuration of a bucket or container: options, environment, profiles, timeouts, retries."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from kafka_index.config import parse_integer
from kafka_index.errors import ConfigError, ReadError
from kafka_index.stores.object_errors import no_credentials, open_error
from kafka_index.stores.store import OBJECT_SCHEMES, StorageOptions, scheme_of

if TYPE_CHECKING:
    from botocore.session import Session

#: Options of the connections, whatever the store.
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

# A request of a piece or of a page; and silence in the middle of an answer.
_TIMEOUTS = {"timeout": "120s", "read_timeout": "30s"}
# While a large body is sent, there is nothing to read.
_UPLOAD_TIMEOUTS = {"timeout": "1h"}
_RETRIES = 10
_RETRY_SECONDS = 120
# A wait is drawn between the first one and three times the one before: half a minute in all.
_BACKOFF = {
    "init_backoff": timedelta(milliseconds=100),
    "max_backoff": timedelta(seconds=10),
    "base": 3,
}

_METADATA = ("169.254.169.254", 80)
_METADATA_SECONDS = 2.0

# Where an endpoint is named, by precedence.
_S3_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\-\[\]:]+(?:/[\w./~%-]*)?")
# Any of these in the environment, and AWS's tools do not look at the shared files.
_S3_CREDENTIALS = (
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
)

# Tools that refresh credentials rewrite the file.
_READ_AGAIN = timedelta(minutes=5)
# The storage library asks an instance or a container for its role, and reads the environment.
_NOT_OF_PROFILES = ("env", "container-role", "iam-role")


@dataclass
class ObjectConfig:
    """The arguments of the library's store.

    Settings of the store are under the library's names, with their prefix. The provider returns
    credentials; None if the library finds them itself.
    """

    store: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)
    provider: Any = None
    max_retries: int = _RETRIES
    retry_seconds: int = _RETRY_SECONDS

    @classmethod
    def load(cls, root: str, options: StorageOptions) -> ObjectConfig:
        """Return the configuration of a store: options win over the environment.

        Raises `ConfigError` if an option or a profile is not valid, `InputError` if the file of a
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
        """Add what AWS's own tools read and the library does not."""
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
            # The library dies on an endpoint that is no URL.
            raise ConfigError(
                "the endpoint is not a URL", path=root, expected="https://host or https://host:port"
            )
        if endpoint.startswith("http://"):
            # Who names a plain endpoint wants it, as AWS's own tools have it.
            self.client.setdefault("allow_http", "true")
        bundle = os.environ.get("AWS_CA_BUNDLE")
        if bundle:
            self.client.setdefault("root_certificate", _certificate(bundle))

    def open(self, root: str, *, for_uploads: bool = False) -> Any:
        """Return the library's store for a root such as ``s3://bucket``, or one for large uploads.

        Raises `ConfigError` if an option is unknown, or the URI does not name a store, and
        `ReadError` if half of the credentials is missing.
        """
        client = {**_TIMEOUTS, **self.client}
        if for_uploads:
            kept = {key: value for key, value in self.client.items() if key not in _TIMEOUTS}
            client = {**_UPLOAD_TIMEOUTS, **kept}
        try:
            return self._from_url(root, self.store, client)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise open_error(error, root, self._refused(root)) from None

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
        """Return the option whose value the library refuses, found by trying each alone."""
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
    """Return whether an instance answers for its role: the library would ask for minutes."""
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
    """Return a URI that the library knows: it has no wasb(s), Hadoop's older name of abfs(s)."""
    scheme, _, authority = root.partition("://")
    if scheme.lower() not in {"wasb", "wasbs"}:
        return root
    return f"abfss://{authority.replace('.blob.', '.dfs.', 1)}"


def _number(key: str, value: str) -> int:
    number = parse_integer(value)
    if number is None or number < 0:
        raise ConfigError(
            f"the storage option {key} is not a number", expected="a whole number", found=value
        )
    return number


def _certificate(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read AWS_CA_BUNDLE: {error.strerror}", path=path) from error


class Credential(TypedDict):
    """The answer of a credential provider to the storage library."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class Profile:
    """A profile of the shared files, with the settings of both files under its name."""

    name: str | None
    region: str | None
    endpoint_url: str | None

    def provider(self) -> Callable[[], Credential] | None:
        """Return the provider of its credentials, None if it has none.

        Raises `ConfigError` if it needs boto3, which is not installed.
        """
        try:
            credentials = self._load()
        except ConfigError as error:
            raise ReadError(error.message, path=error.path) from None
        if credentials is None:
            return None

        def current() -> Credential:
            nonlocal credentials
            # boto3 refreshes credentials that expire, and never reads keys again.
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
    """Return a profile of the shared files; None when there is no default profile.

    The name is by default that of AWS_PROFILE, then AWS_DEFAULT_PROFILE, then ``default``. Raises
    `ConfigError` if the profile was named and does not exist, or a file cannot be parsed.
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
    """Raise errors of boto3 as ours; their messages may hold the secret, and are not shown."""
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
            hint="aws configure list-profiles lists those that do",
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
