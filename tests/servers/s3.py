"""A real S3 server: versitygw, which checks signatures and honours conditional requests.

It is built once, from the Go module proxy. Where Go is missing or too old, moto takes its place,
which accepts every secret: with KAFKA_INDEX_REQUIRE_S3=1 that is not enough.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import S3Store
from pyarrow.fs import S3FileSystem

from tests.conformance.kafka_jars import ensure_made
from tests.servers.processes import built_folder, free_port, running, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_MIN_GO = (1, 25)
_MOTO = ["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"]
_REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running S3 server.

    `kind`: ``versitygw`` or ``moto``. `endpoint`: URL to send requests to. `access_key`,
    `secret_key`: its credentials. `folder`: what versitygw keeps, an object is a file:
    ``folder/BUCKET/KEY``. None for moto.
    """

    kind: str
    endpoint: str
    access_key: str
    secret_key: str
    folder: Path | None

    def environment(self) -> dict[str, str]:
        """Variables that lead a process to this server, as AWS's own tools name them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": _REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def behind(self, endpoint: str) -> S3Server:
        """Return this server behind another endpoint, a proxy's."""
        return replace(self, endpoint=endpoint)

    def filesystem(self) -> S3FileSystem:
        """Another implementation's view of it, for arranging and for checking."""
        return S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region=_REGION,
            allow_bucket_creation=True,
            allow_delayed_open=True,  # a small file by one request, not as an upload in parts
        )

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object, by one request."""
        # pyarrow uploads in parts, whose completion versitygw refuses now and then.
        store = S3Store(
            bucket,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            endpoint=self.endpoint,
            region=_REGION,
            client_options={"allow_http": True},
        )
        obstore.put(store, key, data, use_multipart=False)

    def new_bucket(self) -> str:
        """Create a bucket of a new name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.filesystem().create_dir(name)
        return name


def report_header() -> str:
    """The S3 server that the tests of this run use."""
    return f"S3 server: {'versitygw' if _go() else 'moto (no Go 1.25 or newer here)'}"


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run an S3 server that keeps its objects in a folder; versitygw if it can be built."""
    go = _go()
    if go is None:
        if os.environ.get("KAFKA_INDEX_REQUIRE_S3") == "1":
            pytest.fail("versitygw is required here: install Go 1.25 or newer", pytrace=False)
        with _running_moto(folder) as server:
            yield server
        return
    program = _versitygw(go)
    objects, port, log = folder / "s3", free_port(), folder / "s3.log"
    objects.mkdir()
    server = S3Server("versitygw", f"http://127.0.0.1:{port}", "tests", _new_secret(), objects)
    command = [program, "--quiet", "--keep-alive", "--port", f"127.0.0.1:{port}"]
    secrets = {"ROOT_ACCESS_KEY_ID": "tests", "ROOT_SECRET_ACCESS_KEY": server.secret_key}
    with running([*command, "posix", str(objects)], log, secrets) as process:
        wait_for_port(process, port, log)
        yield server


@contextmanager
def _running_moto(folder: Path) -> Iterator[S3Server]:
    # In an environment of its own: moto needs older versions of packages than we do.
    built = built_folder() / "moto"
    ensure_made(built, " ".join(_MOTO), lambda: _install_moto(built))
    port, log = free_port(), folder / "s3.log"
    command = [str(built / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, log) as process:
        wait_for_port(process, port, log)
        yield S3Server("moto", f"http://127.0.0.1:{port}", "tests", _new_secret(), None)


def _new_secret() -> str:
    """Return a secret that URLs have to quote, as those of AWS."""
    return f"{uuid.uuid4().hex}/+{uuid.uuid4().hex[:8]}"


def _install_moto(folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "pip"), "install", "--quiet", *_MOTO])


def _run(command: list[str], **variables: str) -> str:
    result = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-2000:]
    return result.stdout


def _go() -> str | None:
    """Find a Go that is new enough, on PATH or where its installer puts it."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return None
    version = re.search(r"go(\d+)\.(\d+)", _run([go, "version"], GOTOOLCHAIN="local"))
    return go if version and tuple(map(int, version.groups())) >= _MIN_GO else None


def _versitygw(go: str) -> str:
    """Return the path of versitygw; build it if that was not done before."""
    folder = built_folder() / "versitygw"
    command = ["nice", go, "install", _VERSITYGW]
    ensure_made(folder, _VERSITYGW, lambda: _run(command, GOBIN=str(folder), GOTOOLCHAIN="local"))
    return str(folder / "versitygw")


if __name__ == "__main__":
    # .ci/run builds it beside what does not need it; tests that come meanwhile wait.
    if found := _go():
        print(_versitygw(found))
