"""Reject paths of users that are URIs with passwords or signatures, and hide these in texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from kafka_index.core.errors import ConfigError, InputError, argument_text

PATH_EXPECTED = "a path or a URI"

# A password may contain a slash, so the text after a colon is a port only if it consists of digits
# up to the next slash. URIs of buckets have neither port nor user, URIs of Azure containers no
# port.
_PASSWORD = re.compile(
    r"\w:/{1,2}(?!/)[^/@]*:(?!\d*(?:[/?#]|$))[^@]*@"
    r"|\b(?:s3a?|gs):/{1,2}[^/]*[:@]|\b(?:abfs|wasb)s?:/{1,2}[^/]*:"
    r"|[?&](?:sig|signature|x-amz-signature)=",
    re.IGNORECASE,
)
# What is hidden within a text: user and password of a URI, a signature, or a Spark Connect token.
_PASSWORD_IN_TEXT = re.compile(
    r"(?P<scheme>\w:/{1,2})[^/@\s'\"]*:(?!\d*[/\s'\"])[^\s'\"]*(?=@)"
    r"|(?P<bucket>\b(?:s3a?|gs):/{1,2})[^:/@\s'\"]*(?::[^\s'\"]*)?(?=@)"
    r"|(?P<name>[?&;](?:sig|signature|x-amz-signature|x-amz-security-token|token)=)[^&;\s'\"]*",
    re.IGNORECASE,
)


def has_password(text: str) -> bool:
    return ":/" in text and _PASSWORD.search(text) is not None


def hide_passwords(text: str) -> str:
    return _PASSWORD_IN_TEXT.sub(lambda match: f"{match[match.lastgroup or 0]}[hidden]", text)


def refuse_passwords(paths: Iterable[object]) -> None:
    """Reject paths that are URIs with a password or a signature, without showing them.

    Commands and functions check all paths before they open the first, because paths appear in
    reports, logs and errors. Raises `InputError`.
    """
    for path in paths:
        if isinstance(path, str | os.PathLike) and has_password(os.fspath(path)):
            raise InputError(
                "a URI contains a password or a signature, and paths are shown in reports and logs",
                hint="remove the credentials from the URI, and give --storage-option KEY=@FILE or "
                "environment variables",
            )


def path_of(path: object, name: str) -> str:
    """Convert a path to text; raises `ConfigError` for other types or a path with a password."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(
            f"{name} is not a path", expected=PATH_EXPECTED, found=argument_text(path)
        )
    if not text:
        raise ConfigError(f"{name} is empty", expected="a path or a URI", found=repr(text))
    refuse_passwords([text])
    return text
