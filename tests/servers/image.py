"""The image of the Dockerfile, built and run by buildah: without a daemon or a registry.

Its base is made of Debian's packages, in the likeness of the official one of Python.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.kafka_jars import ensure_made
from tests.support.command_line import ROOT
from tests.support.timeouts import TIMEOUT_SECONDS

from .processes import built_folder

_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_RELEASE = "trixie"
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
#: pip trusts what this machine trusts.
_BASE = """\
FROM scratch
ADD base.tar /
COPY ca.crt /etc/machine-ca.crt
ENV PIP_CERT=/etc/machine-ca.crt
RUN ln -s python3 /usr/bin/python
"""


class Image:
    """An image of this checkout, in a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._store = (
            *("buildah", "--storage-driver", "vfs"),
            *("--root", str(folder / "store"), "--runroot", str(folder / "run")),
        )
        base = folder / "base"
        base.mkdir()
        (base / "base.tar").hardlink_to(_base())
        shutil.copy(_CERTIFICATES, base / "ca.crt")
        (base / "Dockerfile").write_text(_BASE)
        self._build("base", base)
        self._build("kafka-index", ROOT, "--build-arg", "BASE=localhost/base")
        self._container = self._run("from", "--pull-never", "localhost/kafka-index").strip()

    def run(self, *command: str, mounted: Path) -> str:
        """Return what the command of the image prints; ``/dumps`` is a folder of this machine."""
        return self._run(
            *("run", "--isolation", "chroot", "--env", "SPARK_LOCAL_IP=127.0.0.1"),
            *("--volume", f"{mounted}:/dumps:ro", self._container, "--", *command),
        )

    def remove(self) -> None:
        """Remove what was built."""
        self._run("rm", self._container)
        self._run("rmi", "--all", "--force")

    def _build(self, name: str, context: Path, *options: str) -> None:
        self._run(
            *("build", "--isolation", "chroot", "--pull-never", "--quiet", *options),
            *("--tag", f"localhost/{name}", str(context)),
        )

    def _run(self, *arguments: str) -> str:
        result = subprocess.run(
            [*self._store, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * TIMEOUT_SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr


@contextmanager
def built_image() -> Iterator[Image]:
    """Build the image; skip the test where the tools for it are missing."""
    for tool in ("buildah", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"the image is built by {tool}, which is not on this machine")
    with tempfile.TemporaryDirectory(dir=built_folder()) as folder:
        image = Image(Path(folder))
        try:
            yield image
        finally:
            image.remove()


def _base() -> Path:
    folder = built_folder() / "image"
    tar = folder / "base.tar"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE]
    ensure_made(
        folder,
        " ".join(command),
        lambda: subprocess.run([*command, str(tar)], check=True, timeout=TIMEOUT_SECONDS),
    )
    return tar
