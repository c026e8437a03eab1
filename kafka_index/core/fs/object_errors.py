"""Conversion of obstore errors to this package's errors.

The library's messages are never shown or kept as a cause: they quote the store's response, with
request signatures and signed URLs. Only the HTTP status, the store's error code, the host and the
operating system's reason are used.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from obstore import exceptions

from kafka_index.core.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    PublishError,
    ReadError,
    help_page,
)

#: Exceptions of the library, including FileNotFoundError, which is not one of its own classes.
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
            "check the credentials and what they permit",
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
