"""Builds while a fifth of all requests fails: no wrong byte is published, and none hangs."""

from __future__ import annotations

from pathlib import Path

from tests.servers.faults import MANY, NONE, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.campaign import sample_size
from tests.support.command_line import SETTINGS, build_here, copy_partitions
from tests.support.remote import download, new_bucket, upload

BUILDS = sample_size(200, one_in=33)
PARTITIONS = ("orders.eu-west-0", "payments-0")
HIDDEN = (".kafka-index", ".kafka-index-state")


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    return {
        name: data
        for name, data in files.items()
        # A run whose last requests fail leaves its marker to the next one.
        if not name.endswith(HIDDEN) and name != ".kafka-index/lock"
    }


def test_no_wrong_byte_is_published_if_requests_fail(s3: S3Server, tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", *PARTITIONS)
    local = ("--input", data, "--output", tmp_path / "out", "--config", SETTINGS)
    assert build_here(*local).returncode == 0
    expected = visible(
        {
            str(path.relative_to(tmp_path / "out")): path.read_bytes()
            for path in (tmp_path / "out").rglob("*")
            if path.is_file()
        }
    )
    with fault_proxy(s3.endpoint, NONE) as proxy, new_bucket(s3.behind(proxy.endpoint)) as bucket:
        dump = upload(data, f"{bucket}/dump")
        unfinished = 0
        for number in range(BUILDS):
            output = f"{bucket}/out-{number}"
            arguments = ("--input", dump, "--output", output, "--config", SETTINGS)
            proxy.faults = MANY
            result = build_here(*arguments, "--threads", 1 + number % 3)
            proxy.faults = NONE
            actual = visible(download(output))
            assert actual.items() <= expected.items()
            assert result.returncode in (0, 3), result.stdout + result.stderr
            if result.returncode == 3:
                unfinished += 1
                again = build_here(*arguments)
                assert again.returncode == 0, again.stdout + again.stderr
                actual = visible(download(output))
            assert actual == expected
            assert not [name for name in actual if name.startswith(".kafka-index/")]
    assert {request.fault for request in proxy.requests} >= {"unavailable", "dropped", "cut"}
    # The library retries more often than a request fails in a row.
    assert unfinished <= max(BUILDS // 10, 1)
