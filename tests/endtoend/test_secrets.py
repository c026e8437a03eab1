"""Secrets of the environment, of options and of key files are shown by no command, done or failed.

What a run prints and writes, what Spark records of it, and the command lines of the processes that
start meanwhile are searched. The environment of a process is its owner's.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import urllib.parse
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.conftest import event_log
from tests.servers.faults import FaultProxy, Faults, fault_proxy
from tests.servers.processes import free_port
from tests.servers.s3 import S3Server
from tests.support.campaign import combine_cases, sample_size
from tests.support.command_line import COMMAND, Argument, copy_partitions, environment, run_here
from tests.support.remote import download, new_bucket, upload
from tests.support.tiered import ENCRYPTED, setting
from tests.support.timeouts import TIMEOUT_SECONDS

PARTITIONS = ("payments-0", "orders.eu-west-0", "__cluster_metadata-0", "__consumer_offsets-0")
LOG = "payments-0/00000000000000000000.log"
WRONG = "canary+of/a wrong=secret"
#: For other stores, and for other ways into this one.
OTHERS = {
    "AZURE_STORAGE_ACCOUNT_KEY": "canary+of/azure=key",
    "AZURE_CLIENT_SECRET": "canary~of azure/client",
    "GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "canary+of/google"}',
    "HADOOP_CREDSTORE_PASSWORD": "canary/of+hadoop",
}
ONE = ("--topics", "payments")
DROPPED = ("--drop-where", "offset BETWEEN 10 AND 30", "--allow-revive")
QUESTION = ("--topic", "payments", "--partition", 0, "--offset", 5)
#: Arguments of each command. DUMP and TABLES are in the bucket, OUT and REPORT are not.
COMMANDS: dict[str, tuple[Argument, ...]] = {
    "build": ("--input", "DUMP", "--output", "OUT", "--report", "REPORT"),
    "lookup": ("--logs", "DUMP", *QUESTION),
    "verify": ("--input", "DUMP", "--report", "REPORT"),
    "export": ("--input", "DUMP", "--output", "OUT", "--report", "REPORT", *ONE),
    "find": ("--input", "DUMP", "--value-contains", "a", "--limit", 3, *ONE),
    "cat": ("payments", "--input", "DUMP", "--tail", "--from", "2020-01-01"),
    "dump": (f"DUMP/{LOG}",),
    "metadata": ("DUMP", "--what", "topics"),
    "restore": ("--input", "DUMP", "--output", "OUT", "--new-topic-ids", *ONE),
    "rewrite": ("--input", "DUMP", "--output", "OUT", "--report", "REPORT", *ONE, *DROPPED),
    "import": ("--input", "TABLES", "--output", "OUT"),
}
TIERED: dict[str, tuple[Argument, ...]] = {
    "lookup": ("--topic", "wallet_tx", "--partition", 0, "--offset", 100, "--resolve", "record"),
    "find": ("--value-contains", "a", "--limit", 3, "--topics", "wallet_tx"),
    "cat": ("wallet_tx", "-n", 3),
    "export": ("--output", "OUT", "--report", "REPORT", "--topics", "wallet_tx"),
    "verify": ("--report", "REPORT"),
    "build": ("--output", "OUT", "--report", "REPORT"),
    "restore": ("--output", "OUT", "--report", "REPORT", "--topics", "wallet_tx"),
    "rewrite": ("--output", "OUT", "--report", "REPORT", "--topics", "wallet_tx", *DROPPED),
}
ON_SPARK: dict[str, tuple[Argument, ...]] = {
    "build": ("--input", "DUMP", "--output", "BUCKET/built", "--report", "REPORT"),
    "export": ("--input", "DUMP", "--output", "BUCKET/exported", "--report", "REPORT", *ONE),
    "lookup": ("--logs", "DUMP", "--by", "offset", "--queries", "QUERIES", "--output", "OUT"),
}
FAILURES = ("wrong secret", "nothing there", "no server", "no file")
#: From the first read of a log on, which a task does: all requests are refused, or their
#: connections closed.
IN_TASKS = {
    "vanished": None,
    "refused": Faults(unavailable=1.0, status=403, in_a_row=1_000_000),
    "no server": Faults(dropped=1.0, in_a_row=1_000_000),
}


def forms(secret: str) -> set[str]:
    """Return a secret as it is, as URLs and reprs quote it, and within base64 of a longer text."""
    data = secret.encode()
    found = {secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote(secret)}
    found |= {urllib.parse.quote_plus(secret), repr(secret)[1:-1], secret.replace('"', '\\"')}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # The first and the last characters hold bits of the neighbours.
            kept = encode(b"\0" * before + data).decode().rstrip("=")
            found.add(kept[(0, 2, 3)[before] : -1])
    return found


@dataclass
class Search:
    """Secrets, and all that is searched for them."""

    secrets: list[str]
    texts: dict[str, str] = field(default_factory=dict)

    def add_files(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.texts[str(path)] = path.read_text(errors="replace")

    def leaks(self) -> list[tuple[str, str]]:
        return [
            (secret, place)
            for place, text in self.texts.items()
            for secret in self.secrets
            if any(form in text for form in forms(secret))
        ]


def processes() -> set[str]:
    return set(filter(str.isdigit, os.listdir("/proc")))


def command_lines(but: Collection[str]) -> Iterator[str]:
    """Yield the command lines of all processes that are not excluded."""
    for name in processes().difference(but):
        try:
            yield Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue


@contextmanager
def sampled_command_lines() -> Iterator[set[str]]:
    """Collect the command lines of the processes that start meanwhile."""
    result: set[str] = set()
    before, ended = processes(), threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            result.update(command_lines(before))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield result
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class SecretBucket:
    """A bucket with a dump, tables and encrypted remote segments, and the secrets that open it."""

    s3: S3Server
    uri: str

    def run(
        self,
        folder: Path,
        command: str,
        arguments: tuple[Argument, ...],
        *,
        by_option: bool,
        failure: str = "",
        variables: dict[str, str] | None = None,
        more: tuple[str, ...] = (),
    ) -> tuple[subprocess.CompletedProcess[str], Search]:
        """Run a command with secrets all around it; what it left, to be searched."""
        secrets, left = folder / "secrets", folder / "left"
        secrets.mkdir(mode=0o700)
        left.mkdir(exist_ok=True)
        secret = WRONG if failure == "wrong secret" else self.s3.secret_key
        (secrets / "secret").write_text(secret)
        queries = folder / "queries.csv"
        queries.write_text("topic,partition,offset\npayments,0,5\n")
        server = self.s3
        if failure == "no server":
            server = replace(server, endpoint=f"http://127.0.0.1:{free_port()}")
        dump = f"{self.uri}/none" if failure == "nothing there" else f"{self.uri}/dump"
        names: dict[str, Argument] = {
            "DUMP": dump,
            "TABLES": f"{dump}-tables",
            "BUCKET": self.uri,
            "OUT": left / "out",
            "REPORT": left / "report.json",
            "QUERIES": queries,
        }
        given = [str(argument) for argument in arguments]
        for name, value in names.items():
            given = [
                str(value) + each.removeprefix(name)
                if each == name or each.startswith(f"{name}/")
                else each
                for each in given
            ]
        options = {"max_retries": "1", "retry_timeout": "3s"}
        known = {**environment(), **server.environment(), **OTHERS, **(variables or {})}
        if by_option or failure == "no file":
            file = secrets / ("none" if failure == "no file" else "secret")
            options["secret_access_key"] = f"@{file}"
            known["AWS_SECRET_ACCESS_KEY"] = WRONG
        else:
            known["AWS_SECRET_ACCESS_KEY"] = secret
        if failure:
            known["KAFKA_INDEX_TRACEBACK"] = "1"
        given += [f"--storage-option={key}={value}" for key, value in options.items()]
        given += ["--verbose"] if command not in ("dump", "metadata", "find") else []
        with sampled_command_lines() as lines:
            result = subprocess.run(
                [*COMMAND, command, *given, "--summary", str(left / "summary.json")],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env=known,
                timeout=TIMEOUT_SECONDS,
            )
        assert any(f"kafka_index {command} " in line for line in lines)
        search = Search([self.s3.secret_key, WRONG, *OTHERS.values(), *more])
        search.texts = {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "processes": "\n".join(lines),
        }
        search.add_files(left)
        assert str(left / "summary.json") in search.texts
        return result, search


@pytest.fixture(scope="module")
def place(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretBucket]:
    folder = tmp_path_factory.mktemp("secrets")
    data = copy_partitions(folder / "data", *PARTITIONS)
    tables = folder / "tables"
    assert run_here("export", "--input", data, "--output", tables, *ONE).returncode == 0
    with new_bucket(s3) as uri:
        upload(data, f"{uri}/dump")
        upload(tables, f"{uri}/dump-tables")
        upload(Path(setting(ENCRYPTED).remote), f"{uri}/remote")
        yield SecretBucket(s3, uri)


@pytest.mark.parametrize("secret", [WRONG, *OTHERS.values()])
def test_secret_search_detects_every_encoding_of_a_secret(secret: str) -> None:
    texts = [secret, f"x={urllib.parse.quote_plus(secret)}&", str({"key": f"b'{secret}'"})]
    texts += [base64.b64encode(f"{'x' * n}{secret}yy".encode()).decode() for n in range(3)]
    assert len(Search([secret], dict(zip("abcdef", texts, strict=True))).leaks()) == len(texts)


@pytest.mark.parametrize(
    ("command", "given_by"), combine_cases(COMMANDS, ("environment", "option"))
)
def test_successful_command_shows_no_secret(
    command: str, given_by: str, place: SecretBucket, tmp_path: Path
) -> None:
    by_option = given_by == "option"
    done, search = place.run(tmp_path, command, COMMANDS[command], by_option=by_option)
    assert done.returncode == 0, done.stderr
    assert search.leaks() == []


@pytest.mark.parametrize(("command", "failure"), combine_cases(COMMANDS, FAILURES))
def test_failed_command_shows_no_secret(
    command: str, failure: str, place: SecretBucket, tmp_path: Path
) -> None:
    if failure == "wrong secret" and place.s3.kind != "versitygw":
        pytest.skip("moto accepts every secret")
    done, search = place.run(
        tmp_path, command, COMMANDS[command], by_option=len(command) % 2 == 0, failure=failure
    )
    assert done.returncode == (2 if failure in ("nothing there", "no file") else 3), done.stderr
    assert search.leaks() == []


@pytest.mark.parametrize("key", ["right", "wrong", "no key"])
@pytest.mark.parametrize("command", list(TIERED)[: sample_size(len(TIERED), one_in=len(TIERED))])
def test_command_with_the_key_of_remote_segments_shows_no_secret(
    command: str, key: str, place: SecretBucket, tmp_path: Path
) -> None:
    at = setting(ENCRYPTED)
    pem = "canary of a passphrase\n" if key == "no key" else ""
    options: list[str] = []
    bodies = []
    for name, file in at.keys:
        text = pem or Path(file).read_text()
        bodies += [line for line in text.splitlines() if not line.startswith("---")]
        given = tmp_path / f"{name}.pem"
        given.write_text(text if key != "wrong" else text[: len(text) // 2])
        options += ["--tiered-key", f"{name}={given}"]
    arguments = ("--tiered", f"{place.uri}/remote", *options, *TIERED[command])
    done, search = place.run(
        tmp_path,
        command,
        arguments,
        by_option=False,
        variables={"KAFKA_INDEX_TRACEBACK": "1"},
        more=tuple(bodies),
    )
    assert (done.returncode == 0) == (key == "right"), done.stderr
    assert search.leaks() == []


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("failure", ["", "wrong secret"][: sample_size(2, one_in=2)])
@pytest.mark.parametrize("command", list(ON_SPARK)[: sample_size(len(ON_SPARK), one_in=3)])
def test_command_on_spark_shows_no_secret(
    command: str, failure: str, place: SecretBucket, tmp_path: Path
) -> None:
    (tmp_path / "left").mkdir()
    events = tmp_path / "left" / "events"
    settings = " ".join(f"--conf {each}" for each in event_log(events))
    done, search = place.run(
        tmp_path,
        command,
        (*ON_SPARK[command], "--engine", "spark", "--master", "local[1]"),
        by_option=command != "export",
        failure=failure,
        variables={"PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"},
    )
    assert done.returncode == (3 if failure else 0), done.stderr
    if not failure:
        # The events begin with the configuration, properties of Java and of Hadoop among it.
        recorded = [text for name, text in search.texts.items() if name.startswith(str(events))]
        assert any("SparkListenerEnvironmentUpdate" in text for text in recorded)
        assert "org.apache.spark.deploy.SparkSubmit" in search.texts["processes"]
        search.texts.update(
            (name, data.decode(errors="replace"))
            for prefix in ("built", "exported")
            for name, data in download(f"{place.uri}/{prefix}").items()
        )
    assert search.leaks() == []


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize(
    ("command", "failure"), combine_cases(ON_SPARK, list(IN_TASKS))[: sample_size(9, one_in=9)]
)
def test_failed_task_of_spark_shows_no_secret(
    command: str, failure: str, place: SecretBucket, tmp_path: Path
) -> None:
    (tmp_path / "left").mkdir()
    events = tmp_path / "left" / "events"
    settings = " ".join(f"--conf {each}" for each in event_log(events))
    data = copy_partitions(tmp_path / "data", *PARTITIONS)
    read = threading.Event()

    def fail(proxy: FaultProxy, method: str, path: str) -> None:
        # The driver reads the metadata log.
        if method != "GET" or not path.endswith(LOG) or read.is_set():
            return
        read.set()
        faults = IN_TASKS[failure]
        if faults is not None:
            proxy.faults = faults
            return
        for log in data.rglob("*.log"):
            place.s3.filesystem().delete_file(f"{bucket}/dump/{log.relative_to(data)}")

    with fault_proxy(place.s3.endpoint) as proxy, new_bucket(place.s3) as uri:
        upload(data, f"{uri}/dump")
        bucket = uri.removeprefix("s3://")
        proxy.before = partial(fail, proxy)
        done, search = SecretBucket(place.s3.behind(proxy.endpoint), uri).run(
            tmp_path,
            command,
            (*ON_SPARK[command], "--engine", "spark", "--master", "local[1]"),
            by_option=command != "export",
            variables={
                "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
                "KAFKA_INDEX_TRACEBACK": "1",
            },
        )
    assert read.is_set()
    assert done.returncode == 3, done.stderr
    assert any(name.startswith(str(events)) for name in search.texts)
    assert search.leaks() == []
