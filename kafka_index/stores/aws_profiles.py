"""Profiles of AWS's shared files, which the storage library does not read: boto3 does.

boto3 is imported where there is such a file, or a profile is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from kafka_index.errors import ConfigError, ReadError

if TYPE_CHECKING:
    from botocore.session import Session

# Tools that refresh credentials rewrite the file.
_READ_AGAIN = timedelta(minutes=5)
# The storage library asks an instance or a container for its role, and reads the environment.
_NOT_OF_PROFILES = ("env", "container-role", "iam-role")


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
