"""Forged and damaged state files: each field takes every value, and no command fails internally.

A value is rejected with the name of the file, or it is legal and harmless. Exit code 70 is a bug.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from kafka_index.commands.export.export_state import EXPORT_STATE
from kafka_index.commands.import_.import_manifest import IMPORT_MANIFEST
from kafka_index.commands.restore.output import JOURNAL_FILE, STATE_FILE
from kafka_index.core.errors import CorruptObjectError, InputError, KafkaIndexError
from kafka_index.core.format.names import CLEAN_SHUTDOWN
from kafka_index.core.fs.backup.manifest import KeptFile, Manifest, encode, parse_manifest
from kafka_index.core.log.recovery import build_manifest
from tests.commands.backup.repositories import make_backup
from tests.commands.backup.test_manifest import manifest
from tests.support.command_line import run_here
from tests.support.restoring import copy_dump

#: Values that no field should take, or only a field of free text.
HOSTILE: tuple[object, ...] = (
    "../x",
    "/etc",
    "..",
    "orders\n",
    "",
    "a" * 5000,
    -1,
    2**31,
    2**63,
    10**3999,
    1.5,
    True,
    None,
    [],
    {},
)
_Place = tuple[str | int, ...]
_NAMES = ("payments-0", "audit.trail-0")
_TIME_MS = 1_700_000_000_000


def places_in(document: object, place: _Place = ()) -> Iterator[_Place]:
    """Yield the place of each value in a JSON document; of a long list, the first two."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield (*place, name)
            yield from places_in(value, (*place, name))
    elif isinstance(document, list):
        for number, value in enumerate(document[:2]):
            yield (*place, number)
            yield from places_in(value, (*place, number))


def replaced(document: Any, place: _Place, value: object) -> Any:
    """Return a copy of a document with another value at a place."""
    result = copy.deepcopy(document)
    inner = result
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return result


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield every place with every value, and names for people."""
    for place, value in itertools.product(places_in(document), HOSTILE):
        yield f"{place} = {str(value)[:12]!r}", replaced(document, place, value)


def sampled(document: Any, step: int) -> Iterator[tuple[str, Any]]:
    """Yield one of so many mutations, so that all values have their turn."""
    return itertools.islice(mutations(document), 0, None, step)


# ------------------------------------------------------------------------------------- manifests


def packed(document: object) -> bytes:
    return zstandard.compress(json.dumps(document).encode())


def unpacked(data: bytes) -> Any:
    return json.loads(zstandard.decompress(data))


def parsed(data: bytes, path: str) -> Manifest | KafkaIndexError:
    try:
        return parse_manifest(data, path)
    except (CorruptObjectError, InputError) as error:
        return error


def test_every_field_of_a_manifest_is_checked_by_type_and_range() -> None:
    document = unpacked(encode(manifest(files=(KeptFile("quorum-state", 10, "0" * 64, 1),))))
    accepted = []
    for name, mutated in mutations(document):
        found = parsed(packed(mutated), "M")
        if isinstance(found, Manifest):
            accepted.append((name, found))
        else:
            assert found.path == "M", name
    assert len(accepted) < 100
    texts = ("cluster_id", "tool_version", "path", "meta_properties", "high_watermarks_from")
    for name, found in accepted:
        # Free text, and lists that may be empty.
        is_free = any(f"'{text}'" in name for text in texts)
        assert is_free or "../" not in name, name
        assert is_free or "orders" not in name, name
        for partition in found.partitions:
            assert partition.folder.startswith("data/orders-0-"), name


@pytest.fixture(scope="module")
def whole_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a run of two partitions."""
    root = tmp_path_factory.mktemp("repository")
    make_backup(root / "repo", copy_dump(root / "dump", *_NAMES), time_ms=_TIME_MS)
    return root / "repo"


@pytest.fixture
def repository(whole_repository: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole_repository, tmp_path / "repo"))


def commands_of(repository: Path, output: Path) -> list[tuple[str, ...]]:
    return [
        ("backups", "list", str(repository)),
        ("backups", "verify", str(repository)),
        ("backups", "expire", str(repository), "--dry-run"),
        ("restore", "--input", f"backup:{repository}", "--output", str(output)),
        ("verify", "--input", f"backup:{repository}"),
    ]


def test_forged_manifest_is_reported_without_an_internal_error(
    repository: Path, tmp_path: Path
) -> None:
    path = next((repository / "runs").glob("*/*.json.zst"))
    document = unpacked(path.read_bytes())
    output = tmp_path / "out"
    rejected = 0
    for number, (name, mutated) in enumerate(sampled(document, 29)):
        path.write_bytes(packed(mutated))
        is_legal = isinstance(parsed(path.read_bytes(), str(path)), Manifest)
        commands = commands_of(repository, output)
        for command in commands if not is_legal else [commands[number % len(commands)]]:
            result = run_here(*command)
            assert result.returncode in (0, 1, 2), (name, command, result.stderr)
            if not is_legal and mutated.get("format") == document["format"]:
                assert result.returncode == 1, (name, command, result.stderr)
                text = (result.stdout + result.stderr).replace("\n", "")
                assert str(path) in text or path.parent.name in text, (name, command)
                assert not output.exists(), (name, command)
        rejected += not is_legal
        shutil.rmtree(output, ignore_errors=True)
    assert rejected > 20


def test_manifest_that_decompresses_to_a_gibibyte_is_rejected_unread() -> None:
    data = zstandard.compress(b" " * (1 << 28))
    with pytest.raises(CorruptObjectError, match=r"impossible size .expected at most 16777216 b"):
        parse_manifest(data, "M")


@pytest.mark.parametrize("place", ["object", "folder", "manifest"])
def test_symbolic_links_in_a_repository_are_not_followed(
    repository: Path, tmp_path: Path, place: str
) -> None:
    path = {
        "object": next((repository / "data").glob("*/*.log")),
        "folder": next((repository / "data").iterdir()),
        "manifest": next((repository / "runs").glob("*/*.json.zst")),
    }[place]
    moved = tmp_path / "elsewhere"
    shutil.move(path, moved)
    path.symlink_to(moved)
    output = tmp_path / "out"
    result = run_here("restore", "--input", f"backup:{repository}", "--output", str(output))
    assert result.returncode in (1, 2), result.stderr
    if place == "manifest":
        assert not output.exists()
    else:
        assert run_here("backups", "verify", str(repository)).returncode == 1
        assert "a link in a repository is not followed" in result.stdout + result.stderr


# ------------------------------------------------------------------------------- other state files


def json_codec(path: Path) -> tuple[Any, Callable[[Any], bytes]]:
    return json.loads(path.read_bytes()), lambda document: json.dumps(document).encode()


def journal_codec(path: Path) -> tuple[Any, Callable[[Any], bytes]]:
    return (
        [json.loads(line) for line in path.read_bytes().splitlines()],
        lambda lines: b"".join(json.dumps(line).encode() + b"\n" for line in lines),
    )


def build_codec(path: Path) -> tuple[Any, Callable[[Any], bytes]]:
    """Seal the mutated record again."""
    head, _, body = path.read_bytes().partition(b"\n")

    def pack(document: Any) -> bytes:
        digest = build_manifest._digest(json_of(document["record"]) + body)
        return b"\n".join((json_of(document | {"digest": digest}), body))

    return json.loads(head), pack


def json_of(document: object) -> bytes:
    return msgspec.json.encode(document)


class _Case:
    """A command that leaves a state file, which it reads when it is run again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dump = copy_dump(root / "dump", *_NAMES)
        self.output = root / "out"
        self.is_reset = True

    def run(self, *command: str) -> Any:
        return run_here(*command, "--output", str(self.output))


def export_case(case: _Case) -> tuple[Path, Callable[[], Any]]:
    def run() -> Any:
        return case.run("export", "--input", str(case.dump))

    assert run().returncode == 0
    return next(case.output.rglob(EXPORT_STATE)), run


def build_case(case: _Case) -> tuple[Path, Callable[[], Any]]:
    def run() -> Any:
        return case.run("build", "--input", str(case.dump))

    assert run().returncode == 0
    return next(case.output.rglob(build_manifest.BUILD_MANIFEST)), run


def restore_case(name: str) -> Callable[[_Case], tuple[Path, Callable[[], Any]]]:
    def make(case: _Case) -> tuple[Path, Callable[[], Any]]:
        def run() -> Any:
            result = case.run("restore", "--input", str(case.dump))
            (case.output / CLEAN_SHUTDOWN).unlink(missing_ok=True)
            return result

        # The journal has the inodes of its output.
        case.is_reset = False
        assert run().returncode == 0
        return case.output / name, run

    return make


def import_case(
    name: str, *, is_finished: bool = True
) -> Callable[[_Case], tuple[Path, Callable[[], Any]]]:
    def make(case: _Case) -> tuple[Path, Callable[[], Any]]:
        table = case.root / "rows.jsonl"
        table.write_text('{"topic":"t","partition":0,"offset":0,"value":"YQ=="}\n')

        def run() -> Any:
            return case.run("import", "--input", str(table))

        assert run().returncode == 0
        path = case.output / name
        if not is_finished:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"is_finished": False}))
        return path, run

    return make


def lookup_case(case: _Case) -> tuple[Path, Callable[[], Any]]:
    queries = case.root / "queries.csv"
    queries.write_text("topic,partition,offset\npayments,0,1\n")
    case.output = case.root / "answers.parquet"

    def run() -> Any:
        return case.run(
            "lookup", "--input", str(case.dump), "--queries", str(queries), "--by", "offset"
        )

    assert run().returncode == 0
    return case.root / ".answers.parquet.kafka-index-lookup", run


@pytest.mark.parametrize(
    ("make", "codec", "step"),
    [
        pytest.param(export_case, json_codec, 2, id="export"),
        pytest.param(build_case, build_codec, 4, id="build"),
        pytest.param(restore_case(STATE_FILE), json_codec, 1, id="restore"),
        pytest.param(restore_case(JOURNAL_FILE), journal_codec, 11, id="restore-journal"),
        pytest.param(import_case(f"t-0/{IMPORT_MANIFEST}"), json_codec, 1, id="import-partition"),
        pytest.param(import_case(IMPORT_MANIFEST), json_codec, 1, id="import-finished"),
        pytest.param(
            import_case(IMPORT_MANIFEST, is_finished=False), json_codec, 1, id="import-unfinished"
        ),
        pytest.param(lookup_case, json_codec, 3, id="lookup"),
    ],
)
def test_malformed_state_file_causes_no_internal_error(
    tmp_path: Path, make: Any, codec: Any, step: int
) -> None:
    case = _Case(tmp_path)
    precious = tmp_path / "x"
    path, run = make(case)
    document, pack = codec(path)
    is_reset = case.is_reset and case.output.is_dir()
    if is_reset:
        shutil.copytree(case.output, tmp_path / "before")
    codes = set()
    for name, mutated in sampled(document, step):
        precious.write_text("precious")
        path.write_bytes(pack(mutated))
        result = run()
        assert result.returncode in (0, 1, 2, 3), (name, result.stderr)
        assert precious.read_text() == "precious", name
        codes.add(result.returncode)
        if is_reset:
            shutil.rmtree(case.output)
            shutil.copytree(tmp_path / "before", case.output)
    # Some are harmless.
    assert codes - {2}


def test_export_manifest_does_not_delete_files_outside_its_folder(tmp_path: Path) -> None:
    case = _Case(tmp_path)
    path, run = export_case(case)
    document = json.loads(path.read_bytes())
    precious = tmp_path / "precious"
    precious.write_text("precious")
    other = path.parent / "notes.txt"
    other.write_text("mine")
    for name in (os.path.relpath(precious, path.parent), str(precious), "notes.txt"):
        path.write_text(json.dumps(document | {"superseded": [name]}))
        result = run()
        assert result.returncode == 2, result.stderr
        assert str(path) in result.stderr.replace("\n", "")
    assert precious.exists()
    assert other.exists()
