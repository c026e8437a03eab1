"""Credentials from AWS's shared files, which the storage library does not read.

A profile with keys or a ``credential_process`` is read here. One that assumes a role or signs in
(SSO) is left to boto3, where it is installed.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypedDict

from kafka_index.errors import ConfigError

# Tools that refresh credentials rewrite the file.
_READ_AGAIN = timedelta(minutes=5)
_PROCESS_SECONDS = 60
_DEFAULT = "default"
_OF_BOTO3 = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "source_profile",
    "web_identity_token_file",
)


class Credential(TypedDict):
    """What the storage library asks a provider for."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class Profile:
    """A profile of the shared files.

    Attributes
    ----------
    name
        Its name.
    settings
        What both files have under it.
    """

    name: str
    settings: Mapping[str, str]

    @property
    def region(self) -> str | None:
        """Where its requests go."""
        return self.settings.get("region")

    @property
    def endpoint_url(self) -> str | None:
        """Which server its requests go to."""
        return self.settings.get("endpoint_url")

    def provider(self) -> Callable[[], Credential] | None:
        """Return what returns its credentials, None where it has none.

        Raises
        ------
        ConfigError
            It needs boto3, which is not installed.
        """
        if "aws_access_key_id" in self.settings and "aws_secret_access_key" in self.settings:
            return partial(_keys, self.name)
        if "credential_process" in self.settings:
            return partial(_run, self.name, self.settings["credential_process"])
        if any(key in self.settings for key in _OF_BOTO3):
            return _boto3_provider(self.name)
        return None


def find_profile(name: str | None) -> Profile | None:
    """Return a profile of the shared files.

    Parameters
    ----------
    name : str, optional
        By default that of AWS_PROFILE, then AWS_DEFAULT_PROFILE, then ``default``.

    Returns
    -------
    Profile or None
        None when there is no default profile.

    Raises
    ------
    ConfigError
        The profile was named and does not exist, or a file cannot be parsed.
    """
    named = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    section = _read(named or _DEFAULT)
    if section is None:
        if named is None:
            return None
        raise ConfigError(
            f"the AWS profile {named} does not exist",
            path=_config_path(),
            hint="aws configure list-profiles lists those that do",
        )
    return Profile(named or _DEFAULT, section)


def _keys(name: str) -> Credential:
    section = _read(name) or {}
    return {
        "access_key_id": section.get("aws_access_key_id", ""),
        "secret_access_key": section.get("aws_secret_access_key", ""),
        "token": section.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + _READ_AGAIN,
    }


def _run(name: str, command: str) -> Credential:
    # Neither the command's output nor its errors are shown: they may hold the secret.
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, check=True, timeout=_PROCESS_SECONDS
        )
        answer = json.loads(done.stdout)
        expires = answer.get("Expiration")
        return {
            "access_key_id": answer["AccessKeyId"],
            "secret_access_key": answer["SecretAccessKey"],
            "token": answer.get("SessionToken"),
            "expires_at": datetime.fromisoformat(expires) if expires else None,
        }
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the credential_process of the AWS profile {name} failed: {type(error).__name__}",
            path=_config_path(),
        ) from None


def _boto3_provider(name: str) -> Callable[[], Credential]:
    try:
        from boto3 import Session  # noqa: PLC0415, because few profiles need it
    except ImportError as error:
        raise ConfigError(
            f"the AWS profile {name} assumes a role or signs in, which boto3 does",
            path=_config_path(),
            hint="pip install boto3, or export the credentials to the environment "
            "(aws configure export-credentials --format env)",
        ) from error
    credentials = Session(profile_name=name).get_credentials()

    def current() -> Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _READ_AGAIN,
        }

    return current


def _read(name: str) -> dict[str, str] | None:
    """Return the settings of a profile in both files; those for credentials win."""
    heading = name if name == _DEFAULT else f"profile {name}"
    found = {
        **_section(_config_path(), heading),
        **_section(_credentials_path(), name),
    }
    return found or None


def _section(path: str, heading: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # The parser's message shows the line, which may hold a secret.
        raise ConfigError("not a settings file of AWS", path=path) from None
    return dict(parser[heading]) if parser.has_section(heading) else {}


def _config_path() -> str:
    return os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")


def _credentials_path() -> str:
    return os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
