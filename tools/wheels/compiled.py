"""Makes wheels that carry the kernels' machine code out of the wheel for every system.

usage: python -m tools.wheels.compiled WHEEL [MACHINE...]

For each machine, as ``x86_64`` (all that code is packaged for, unless some are named), the wheel is
written again beside WHEEL, with code for the Python and the libraries that run this. Its extra
``compiled`` asks for just these versions of the libraries: with others, the kernels are compiled
where they run. ``kafka_index.zip``, for Spark's ``--py-files``, has the code for all machines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The code calls nothing of the C library that the oldest one of these tags lacks
#: (`tools.wheels.kernels`).
PLATFORMS = ("manylinux_2_17_{}", "manylinux2014_{}")
_EXTRA = "compiled"
_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
_ABI = f"{_PYTHON}{sys.abiflags}"
_KERNELS = "kafka_index/core/kernels"
_LINKED = "-linked-"
_MOMENT = (1980, 1, 1, 0, 0, 0)


def make(wheel: Path, machines: Iterable[str] = ()) -> list[Path]:
    """Write the wheels of some machines, or of all, and the zip; return their paths."""
    made = []
    all_code: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        package, signatures = Path(folder, "package"), Path(folder, "signatures")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(package)
            content = {name: archive.read(name) for name in archive.namelist()}
        packaged = json.loads(_run(package, "list", str(signatures)))
        for machine in machines or packaged["levels"]:
            code = {
                f"{_KERNELS}/{packaged['folders'][machine]}/{path.name}": path.read_bytes()
                for level in packaged["levels"][machine]
                for path in _compiled(package, signatures, machine, level)
            }
            all_code |= code
            made.append(_write(wheel, content | code, machine, packaged["versions"]))
    return [*made, _pack(wheel.with_name("kafka_index.zip"), content | all_code)]


def _compiled(package: Path, signatures: Path, machine: str, level: str) -> Iterator[Path]:
    """Compile the kernels for a level; yield the files of the kernels that Python calls."""
    cache = package.with_name(f"{machine}-{level}")
    # A level is all that the code may use, and there is no machine code of our own for others.
    _run(
        package,
        *("compile", str(signatures), f"{machine}-unknown-linux-gnu"),
        NUMBA_CPU_NAME=level,
        NUMBA_CPU_FEATURES="",
        NUMBA_CACHE_DIR=str(cache),
        KAFKA_INDEX_CRC32C="library",
    )
    return (path for path in sorted(cache.rglob("*.bin")) if _LINKED not in path.name)


def _run(package: Path, *arguments: str, **more: str) -> str:
    """Run `tools.wheels.kernels` with the modules of a package; return what it prints."""
    path = os.pathsep.join([str(package), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tools.wheels.kernels", *arguments],
        env={**os.environ, **more, "PYTHONPATH": path},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout


def _write(
    wheel: Path, content: Mapping[str, bytes], machine: str, versions: Mapping[str, str]
) -> Path:
    """Write a wheel of these files for one Python on one machine."""
    platforms = [platform.format(machine) for platform in PLATFORMS]
    name, version, *_ = wheel.name.split("-")
    target = wheel.with_name(f"{name}-{version}-{_PYTHON}-{_ABI}-{'.'.join(platforms)}.whl")
    about = f"{name}-{version}.dist-info"
    files = dict(content)
    record = f"{about}/RECORD"
    del files[record]
    files[f"{about}/WHEEL"] = _tagged(files[f"{about}/WHEEL"].decode(), platforms).encode()
    files[f"{about}/METADATA"] = _pinned(files[f"{about}/METADATA"].decode(), versions).encode()
    rows = [f"{file},sha256={_hash(data)},{len(data)}\n" for file, data in files.items()]
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    return _pack(target, files)


def _pack(target: Path, files: Mapping[str, bytes]) -> Path:
    scratch = target.with_suffix(".tmp")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file, data in files.items():
            entry = zipfile.ZipInfo(file, _MOMENT)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return scratch.replace(target)


def _tagged(text: str, platforms: list[str]) -> str:
    """Change the text of WHEEL to a wheel of one Python and these platforms."""
    kept = [line for line in text.splitlines() if not line.startswith(("Root-Is-Purelib:", "Tag:"))]
    tags = [f"Tag: {_PYTHON}-{_ABI}-{platform}" for platform in platforms]
    return "\n".join([*(line for line in kept if line), "Root-Is-Purelib: false", *tags, ""])


def _pinned(text: str, versions: Mapping[str, str]) -> str:
    """Add to the text of METADATA the extra for versions of libraries."""
    headers, blank, body = text.partition("\n\n")
    pins = [
        f'Requires-Dist: {one}=={version}; extra == "{_EXTRA}"' for one, version in versions.items()
    ]
    return "\n".join([headers, f"Provides-Extra: {_EXTRA}", *pins]) + blank + body


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]), sys.argv[2:]):
        sys.stdout.write(f"{path} ({path.stat().st_size / 1e6:.1f} MB)\n")
