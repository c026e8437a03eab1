"""Logs and indexes in S3 and HDFS, which executors reach by the options of the driver."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.conftest import event_log, run
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.support.command_line import SETTINGS
from tests.support.remote import download, new_bucket, upload
from tests.support.spark_cluster import Cluster


def test_build_from_and_into_a_bucket_gives_the_files_of_the_local_engine(
    cluster: Cluster,
    python: Path,
    s3: S3Server,
    data: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
) -> None:
    secret, events = tmp_path / "secret", tmp_path / "events"
    secret.write_text(s3.secret_key)
    given = s3.environment()
    options = {
        "endpoint": given["AWS_ENDPOINT_URL"],
        "region": given["AWS_REGION"],
        "allow_http": given["AWS_ALLOW_HTTP"],
        "access_key_id": s3.access_key,
        "secret_access_key": f"@{secret}",
    }
    with new_bucket(s3) as bucket:
        upload(data, f"{bucket}/dump")
        known = cluster.executor_logs()

        result = run(
            python,
            *("build", "--engine", "spark", "--master", cluster.master, "--config", SETTINGS),
            *("--input", f"{bucket}/dump", "--output", f"{bucket}/out"),
            *(f"--storage-option={name}={value}" for name, value in options.items()),
            settings=event_log(events),
        )

        assert (result.returncode, result.stderr) == (0, "")
        downloaded = download(f"{bucket}/out")
    indexes = (".index", ".timeindex")
    assert {name: data for name, data in downloaded.items() if name.endswith(indexes)} == expected
    assert not [name for name in downloaded if name.startswith(".kafka-index/")]
    written = [result.stdout, *(log.read_text() for log in cluster.executor_logs() - known)]
    written += [log.read_text() for log in events.rglob("*") if log.is_file()]
    assert len(written) > 2
    assert not any(s3.secret_key in text for text in written)


def test_build_from_and_into_hdfs_gives_the_files_of_the_local_engine(
    cluster: Cluster, python: Path, hdfs: HdfsServer, data: Path, expected: dict[str, bytes]
) -> None:
    root = f"{hdfs.uri}/cluster"
    names = sorted(path.name for path in data.glob("payments-*"))
    assert names
    for name in names:
        upload(data / name, f"{root}/dump/{name}")

    result = run(
        python,
        *("build", "--engine", "spark", "--master", cluster.master, "--config", SETTINGS),
        *("--input", f"{root}/dump", "--output", f"{root}/out"),
    )

    assert (result.returncode, result.stderr) == (0, "")
    downloaded = download(f"{root}/out")
    indexes = (".index", ".timeindex")
    assert {name: data for name, data in downloaded.items() if name.endswith(indexes)} == {
        name: data for name, data in expected.items() if name.split("/")[0] in names
    }
    assert not [name for name in downloaded if name.startswith(".kafka-index/")]
