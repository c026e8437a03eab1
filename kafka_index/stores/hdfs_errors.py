"""Errors of hdfs-native as ours: the name node's message without its stack."""

from __future__ import annotations

import re

from kafka_index.errors import PublishError, ReadError

_JAVA_ERROR = re.compile(r'"?(?:[a-z][\w]*\.)+(\w+Exception)"?, "?([^\n\\]{1,200})')


def reason(error: Exception) -> str:
    """Return what went wrong, without the stack of the name node."""
    text = str(error)
    match = _JAVA_ERROR.search(text)
    if match is not None:
        return f"{match[2].strip()} ({match[1]})"
    first = text.splitlines()[0] if text else ""
    return first[:200] or type(error).__name__


def read_error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> ReadError:
    """Return our error for what cannot be read: `action` follows "cannot"."""
    return ReadError(
        f"cannot {action}: {reason(error)}",
        path=path,
        position_bytes=position_bytes,
        hint=_hint(error),
    )


def publish_error(error: Exception, path: str, action: str) -> PublishError:
    """Return our error for what cannot be written: `action` follows "cannot"."""
    return PublishError(f"cannot {action}: {reason(error)}", path=path, hint=_hint(error))


def _hint(error: Exception) -> str | None:
    if "AccessControlException" in str(error):
        return "run as a user who may (HADOOP_USER_NAME, or a Kerberos ticket: kinit)"
    if isinstance(error, OSError):
        return "check the address and the network"
    return None
