"""Whether a cluster's master answers, before Spark tries for minutes and ends in a stack trace."""

from __future__ import annotations

import re
import socket
import struct
from urllib.parse import urlsplit

from kafka_index.errors import EngineError

CONNECT_SCHEME = "sc://"
_STANDALONE_SCHEME = "spark://"
_KUBERNETES_SCHEME = "k8s://"
_CONNECT_PORT = 15002

#: Of all masters together; a run that cannot start ends within half a minute.
_TOTAL_SECONDS = 20.0
_MAX_CONNECT_SECONDS = 5.0

# Spark's transport protocol (org.apache.spark.network.protocol): a frame is its own length, a type,
# and what belongs to the type. Of these two that is a length and as many bytes of UTF-8.
_FRAME_LENGTH = struct.Struct(">q")
_STREAM_REQUEST = 6
_STREAM_FAILURE = 8
_STRING_LENGTH = struct.Struct(">i")
_MAX_FRAME_BYTES = 1 << 16
# A file that no master serves: it answers so without a line in its log.
_NO_STREAM = b"/files/kafka-index"
_NOT_SPARK = "what answers there is not a Spark master"


def check_master(master: str, *, is_plain: bool = True) -> None:
    """Check that a server answers at the address of a master, if it names a host and a port.

    `is_plain`: a standalone master speaks Spark's protocol without authentication and encryption;
    only then can it be told from another server. Raises `EngineError` if nothing answers, or the
    server is not a standalone master.
    """
    addresses = _addresses(master)
    if not addresses:
        return
    seconds = _TOTAL_SECONDS / 2 / len(addresses)
    asks_spark = is_plain and master.startswith(_STANDALONE_SCHEME)
    reason: Exception | None = None
    for address in addresses:
        try:
            with socket.create_connection(address, min(seconds, _MAX_CONNECT_SECONDS)) as server:
                if asks_spark:
                    server.settimeout(seconds)
                    _ask_spark(server)
                return
        except (OSError, _NotSparkError) as error:
            reason = reason or error
    raise EngineError(
        f"Spark does not start: no connection to its master ({reason})",
        path=master,
        hint="check --master and that the master runs",
    ) from reason


class _NotSparkError(Exception):
    """The server does not speak Spark's protocol."""


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a master; none where Spark itself has to judge it."""
    if master.startswith(_STANDALONE_SCHEME):
        given = master.removeprefix(_STANDALONE_SCHEME).split(",")
        addresses = [_host_and_port(f"//{each}", None) for each in given]
    elif master.startswith(_KUBERNETES_SCHEME):
        url = master.removeprefix(_KUBERNETES_SCHEME)
        url = url if re.match("https?://", url) else f"https://{url}"
        addresses = [_host_and_port(url, 80 if url.startswith("http:") else 443)]
    elif master.startswith(CONNECT_SCHEME):
        url = master.removeprefix(CONNECT_SCHEME).partition(";")[0]
        addresses = [_host_and_port(f"//{url}", _CONNECT_PORT)]
    else:
        return []
    known = [address for address in addresses if address is not None]
    return known if len(known) == len(addresses) else []


def _host_and_port(url: str, usual_port: int | None) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or usual_port
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def _ask_spark(server: socket.socket) -> None:
    """Request a stream that no server of Spark's protocol has, which each refuses in kind."""
    body = bytes([_STREAM_REQUEST]) + _STRING_LENGTH.pack(len(_NO_STREAM)) + _NO_STREAM
    server.sendall(_FRAME_LENGTH.pack(_FRAME_LENGTH.size + len(body)) + body)
    try:
        (length,) = _FRAME_LENGTH.unpack(_receive(server, _FRAME_LENGTH.size))
        if not _FRAME_LENGTH.size < length < _MAX_FRAME_BYTES:
            raise _NotSparkError(_NOT_SPARK)
        # To its end, or the master logs a connection that was reset.
        answer = _receive(server, length - _FRAME_LENGTH.size)
    except TimeoutError:
        raise _NotSparkError("it accepts connections and does not answer") from None
    if answer[0] != _STREAM_FAILURE:
        raise _NotSparkError(_NOT_SPARK)


def _receive(server: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = server.recv(count - len(received))
        if not part:
            raise _NotSparkError(_NOT_SPARK)
        received += part
    return received
