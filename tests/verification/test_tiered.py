"""Verification of partitions whose segments are in tiered storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.cli.run_end import ExitCode
from tests.support.command_line import Argument, run_here
from tests.support.tiered import SETTINGS, Setting, setting

#: ``index.interval.bytes`` of the brokers' topics.
_INTERVAL = 600


def arguments(at: Setting) -> list[Argument]:
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    return ["--tiered", at.remote, *pairs, "--index-interval-bytes", _INTERVAL]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_brokers_uploaded_is_right(name: str) -> None:
    at = setting(name)

    done = run_here("verify", "--input", at.data, *arguments(at))

    assert done.returncode == ExitCode.DONE, done.stdout
    assert "identical" in done.stdout


@pytest.mark.parametrize("name", SETTINGS)
def test_remote_segments_are_verified_without_the_directory_of_a_broker(name: str) -> None:
    done = run_here("verify", *arguments(setting(name)))

    assert done.returncode == ExitCode.DONE, done.stdout
    assert "identical" in done.stdout


def test_an_uploaded_index_that_leads_astray_is_found() -> None:
    at = setting("local")
    indexes = sorted(Path(at.remote).rglob("*.timeindex"), key=lambda path: path.stat().st_size)
    path = indexes[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-12])
    try:
        done = run_here("verify", *arguments(at), "--input", at.data)
    finally:
        path.write_bytes(content)

    assert done.returncode == ExitCode.DAMAGE
    assert "timeindex: incomplete" in done.stdout
