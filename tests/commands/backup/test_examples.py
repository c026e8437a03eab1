"""The files of examples/backup are for cron, systemd and Kubernetes, and their commands run."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.command_line import COMMAND, DUMP, ROOT, environment
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

FOLDER = ROOT / "examples" / "backup"
SERVICE, TIMER = (FOLDER / f"kafka-index-backup.{kind}" for kind in ("service", "timer"))
_CRON = re.compile(r"(?P<when>\S+ \S+ \S+ \S+ \S+) +(?P<user>[a-z]+) +(?P<command>.*)")


def unit(path: Path) -> configparser.ConfigParser:
    result = configparser.ConfigParser(delimiters=["="], interpolation=None, strict=True)
    result.optionxform = str  # type: ignore[assignment,method-assign]
    result.read(path)
    return result


def document(name: str) -> dict[str, Any]:
    (document,) = yaml.safe_load_all((FOLDER / name).read_text())
    assert isinstance(document, dict)
    return document


def cron_lines() -> list[re.Match[str]]:
    lines = (FOLDER / "crontab").read_text().splitlines()
    is_job = re.compile(r"[^#A-Z\s]")
    return [match for line in lines if is_job.match(line) and (match := _CRON.fullmatch(line))]


def pod_of(name: str) -> dict[str, Any]:
    result = document(name)["spec"]
    if name == "cronjob.yaml":
        result = result["jobTemplate"]["spec"]
    pod = result["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def command_of(name: str) -> list[str]:
    if name == "crontab":
        (line,) = cron_lines()
        words = shlex.split(line["command"])
        return words[words.index("kafka-index") :]
    if name == SERVICE.name:
        return shlex.split(unit(SERVICE)["Service"]["ExecStart"])
    (container,) = pod_of(name)["containers"]
    command = container["command"]
    assert all(isinstance(word, str) for word in command)
    return [*command]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A broker's directories, with the metadata log apart."""
    root = tmp_path / "kafka"
    shutil.copytree(DUMP, root / "data")
    (root / "metadata").mkdir()
    (root / "data" / "__cluster_metadata-0").rename(root / "metadata" / "__cluster_metadata-0")
    shutil.copy(root / "data" / "meta.properties", root / "metadata")
    return root


def with_local_paths(words: Sequence[str], data: Path, tmp_path: Path) -> list[str]:
    """Return a command with the paths of this machine; the dump has one broker."""
    places = {
        "/var/lib/kafka": str(data),
        "s3://backups/kafka": str(tmp_path / "repository"),
        "/var/lib/prometheus/node-exporter": str(tmp_path),
        "/run/kafka-index-backup": str(tmp_path),
        "/run/kafka-index": str(tmp_path),
    }
    result = []
    for word in words:
        place = next(
            (
                known_place
                for known_place in places
                if word == known_place or word.startswith(f"{known_place}/")
            ),
            None,
        )
        result.append(word if place is None else places[place] + word[len(place) :])
    assert not any(word.startswith(("/var", "/run", "s3:")) for word in result)
    number = result.index("--brokers") + 1
    assert len(result[number].split(",")) == 3
    result[number] = "1"
    return [*COMMAND, *result[1:]]


@pytest.mark.parametrize("name", ["crontab", SERVICE.name, "cronjob.yaml"])
def test_backup_example_command_succeeds(name: str, data: Path, tmp_path: Path) -> None:
    command = with_local_paths(command_of(name), data, tmp_path)
    result = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("repository/runs/*/1.json.zst"))) == 1
    for option in ("--metrics", "--health"):
        if option in command:
            assert Path(command[command.index(option) + 1]).stat().st_size


def test_sidecar_keeps_running_and_its_probes_find_its_health(data: Path, tmp_path: Path) -> None:
    command = with_local_paths(command_of("sidecar.yaml"), data, tmp_path)
    (container,) = pod_of("sidecar.yaml")["containers"]
    health = tmp_path / "health.json"

    def probe(kind: str) -> int:
        words = [
            word.replace("/run/kafka-index", str(tmp_path))
            for word in container[kind]["exec"]["command"]
        ]
        return subprocess.run(words, check=False).returncode

    assert probe("startupProbe") == 1
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("status ")
        wait_for(health.exists, 10, "health")
        assert json.loads(health.read_text())["healthy"]
        assert (probe("startupProbe"), probe("livenessProbe")) == (0, 0)
        os.utime(health, (1, 1))
        assert probe("livenessProbe") == 1
        assert process.poll() is None
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 143
    finally:
        process.kill()
        process.communicate()


def test_all_schedules_are_every_five_minutes() -> None:
    (line,) = cron_lines()
    assert line["when"] == document("cronjob.yaml")["spec"]["schedule"] == "*/5 * * * *"
    timer = unit(TIMER)["Timer"]
    assert (timer["OnCalendar"], timer["AccuracySec"]) == ("*:0/5", "1s")
    command = command_of("sidecar.yaml")
    assert command[command.index("--every") + 1] == "5m"


@pytest.mark.parametrize("name", ["cronjob.yaml", "sidecar.yaml"])
def test_example_pod_mounts_only_the_broker_volume(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["data"]["readOnly"] is True
    # The volume of the broker's own pod is the StatefulSet's.
    assert {volume["name"] for volume in pod["volumes"]} | {"data"} == set(mounts)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_example_systemd_units_are_valid(tmp_path: Path) -> None:
    for path in (SERVICE, TIMER):
        # The command is not installed there.
        text = path.read_text().replace("/usr/local/bin/kafka-index", "/bin/true")
        (tmp_path / path.name).write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / TIMER.name), str(tmp_path / SERVICE.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    unit_lines = [line for line in result.stderr.splitlines() if "kafka-index-backup" in line]
    assert (result.returncode, unit_lines) == (0, [])
