"""Masters that do not answer, or are none: one line in seconds, without Java."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kafka_index.core.errors import EngineError
from kafka_index.spark import session
from kafka_index.spark.session import check_master

MANY = 15
SHORT_SECONDS = 2.0


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A server that answers each connection and closes it; None: that accepts and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while answer is not None:
                    with listening.accept()[0] as connection:
                        connection.recv(1000)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("scheme", ["spark://", "sc://", "k8s://https://", "k8s://"])
def test_closed_master_port_is_reported_with_the_reason(scheme: str) -> None:
    master = f"{scheme}127.0.0.1:{closed_port()}"
    with pytest.raises(EngineError, match="Connection refused") as caught:
        check_master(master)
    assert caught.value.path == master


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server is not a Spark master"),
        (b"", "the server is not a Spark master"),
        (None, "the server accepts connections but does not respond"),
    ],
)
def test_other_server_at_the_master_address_is_reported(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, text: str
) -> None:
    monkeypatch.setattr(session, "_TOTAL_SECONDS", SHORT_SECONDS)
    with server(answer) as port, pytest.raises(EngineError, match=text):
        check_master(f"spark://127.0.0.1:{port}")


def test_several_silent_masters_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_TOTAL_SECONDS", SHORT_SECONDS)
    started = time.monotonic()
    with server(None) as port, pytest.raises(EngineError):
        check_master("spark://" + ",".join([f"127.0.0.1:{port}"] * MANY))
    assert time.monotonic() - started < MANY * SHORT_SECONDS


def test_job_starts_if_one_of_several_masters_responds() -> None:
    refusal = b"\0\0\0\0\0\0\0\x15\x08\0\0\0\0\0\0\0\x04none"
    with server(refusal) as port:
        check_master(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://nowhere", "local-cluster[1,1,1]"])
def test_master_url_without_an_address_is_passed_to_spark(master: str) -> None:
    check_master(master)


def test_encrypted_master_is_checked_by_connecting_only() -> None:
    with server(b"") as port:
        check_master(f"spark://127.0.0.1:{port}", is_plain=False)
