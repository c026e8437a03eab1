"""Damage to what a controller keeps beside its topics: quorum state, metadata log, snapshots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

METADATA_LOG = "__cluster_metadata-0"
QUORUM_STATE = "quorum-state"

Damage = Callable[[Path], None]


def _with_text(change: Callable[[str], str]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / QUORUM_STATE
        path.write_text(change(path.read_text()))

    return damage


def _with_fields(**fields: object) -> Damage:
    def change(text: str) -> str:
        document = json.loads(text)
        for name, value in fields.items():
            if value is None:
                document.pop(name, None)
            else:
                document[name] = value
        return json.dumps(document, separators=(",", ":"))

    return _with_text(change)


def _raw_field(name: str, value: str) -> Damage:
    """Write a value as it stands, which may be no JSON."""

    def change(text: str) -> str:
        document = json.loads(text)
        document[name] = "VALUE"
        return json.dumps(document).replace('"VALUE"', value)

    return _with_text(change)


def _remove(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()

    return damage


def _as_directory(folder: Path) -> None:
    (folder / QUORUM_STATE).unlink()
    (folder / QUORUM_STATE).mkdir()


def _dangling(folder: Path) -> None:
    (folder / QUORUM_STATE).unlink()
    (folder / QUORUM_STATE).symlink_to("nothing-here")


def _bytes(data: bytes) -> Damage:
    return lambda folder: _write(folder / QUORUM_STATE, data)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


#: By name. The file is ``{"leaderId":1,"leaderEpoch":N,"votedId":-1,...,"data_version":0 or 1}``.
QUORUM_STATES: dict[str, Damage] = {
    "as it is": lambda _: None,
    "absent": _remove(QUORUM_STATE),
    "a directory": _as_directory,
    "a dangling link": _dangling,
    "empty": _bytes(b""),
    "an empty line": _bytes(b"\n"),
    "an empty first line": _with_text(lambda text: "\n" + text),
    "cut in the middle": _with_text(lambda text: text[: len(text) // 2]),
    "without its last byte": _with_text(lambda text: text.rstrip()[:-1]),
    "zeros": _with_text(lambda text: "\0" * len(text)),
    "zeros after it": _with_text(lambda text: text + "\0" * 16),
    "garbage after it": _with_text(lambda text: text + "garbage"),
    "another line": _with_text(lambda text: text + "\ngarbage"),
    "two objects": _with_text(lambda text: text + text),
    "a comma more": _with_text(lambda text: text.replace("}", ",}")),
    "over two lines": _with_text(lambda text: text.replace(",", ",\n")),
    "with blanks": _with_text(lambda text: "  " + text.replace(":", " : ").replace(",", "\t, ")),
    "with a mark of the byte order": _with_text(lambda text: "\ufeff" + text),
    "a carriage return after it": _with_text(lambda text: text + "\r\n"),
    "not UTF-8": lambda folder: _write(
        folder / QUORUM_STATE, (folder / QUORUM_STATE).read_bytes().replace(b"leaderId", b"l\xffId")
    ),
    "an array": _bytes(b"[1,2]"),
    "null": _bytes(b"null"),
    "a number": _bytes(b"7"),
    "an empty object": _bytes(b"{}"),
    "single quotes": _with_text(lambda text: text.replace('"', "'")),
    "a comment": _with_text(lambda text: text.replace("{", "{/* */")),
    "keys doubled": _with_text(lambda text: text.replace("{", '{"leaderEpoch":7,')),
    "an unknown field": _with_fields(more=1),
    "an unknown field of an object": _with_fields(more={"a": [1, {}]}),
    **{
        f"{name} absent": _with_fields(**{name: None})
        for name in (
            *("leaderId", "leaderEpoch", "votedId", "votedDirectoryId"),
            *("data_version", "clusterId", "appliedOffset", "currentVoters"),
        )
    },
    **{
        f"{name} {value}": _raw_field(name, value)
        for name, values in {
            "leaderId": (
                *("-1", "0", "1", "2", "-2", "2147483647", "2147483648", "99999999999999999999"),
                *("null", '"1"', "1.0", "1.5", "1e0", "true", "[]", "01", "+1"),
            ),
            "leaderEpoch": (
                *("-1", "0", "1", "1000", "2147483646", "2147483647", "2147483648"),
                *("-2147483648", "null", '"5"', "5.0", "0x5"),
            ),
            "votedId": ("0", "1", "2", "-2", "2147483647", "2147483648", "null", '"1"'),
            "votedDirectoryId": (
                *('"AAAAAAAAAAAAAAAAAAAAAA"', '"JHz0NZ6tQNiQ2Mm2kGlrHQ"', '"x"', '""', "null", "7"),
            ),
            "data_version": (
                *("0", "1", "2", "-1", "32767", "32768", "65536", "65537", "null", '"0"', '"x"'),
                *("0.0", "1.9", "true"),
            ),
            "clusterId": ('"other"', '""', "null", "7"),
            "appliedOffset": ("-1", "9223372036854775807", "9223372036854775808", "null", '"0"'),
            "currentVoters": (
                *("[]", "null", '"x"', '[{"voterId":2}]', "[{}]", "[1]", '[{"voterId":null}]'),
            ),
        }.items()
        for value in values
    },
    "voted and led": _with_fields(leaderId=1, votedId=1),
    "a vote for another": _with_fields(leaderId=-1, votedId=2),
    "a vote for itself": _with_fields(leaderId=-1, votedId=1),
    "a leftover beside it": lambda folder: _write(folder / f"{QUORUM_STATE}.tmp", b"{"),
}


def _snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


def _last_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def _cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _all_snapshots(change: Callable[[Path], None]) -> Damage:
    def damage(folder: Path) -> None:
        for path in _snapshots(folder):
            change(path)

    return damage


def _without_logs(folder: Path) -> None:
    for path in _of_logs(folder):
        path.unlink()


def _without_logs_and_snapshots(folder: Path) -> None:
    for path in (*_of_logs(folder), *_snapshots(folder)):
        path.unlink()


def _of_logs(folder: Path) -> Iterator[Path]:
    for suffix in ("log", "index", "timeindex", "snapshot", "txnindex"):
        yield from folder.glob(f"*.{suffix}")


def _foreign_snapshot(folder: Path) -> None:
    shutil.copy(_snapshots(folder)[-1], folder / "00000000000099999999-0000000001.checkpoint")


METADATA_LOGS: dict[str, Damage] = {
    "snapshots absent": _all_snapshots(Path.unlink),
    "the last snapshot absent": lambda folder: _snapshots(folder)[-1].unlink(),
    "the last snapshot empty": lambda folder: _write(_snapshots(folder)[-1], b""),
    "the last snapshot cut by 40": lambda folder: _cut(_snapshots(folder)[-1], 40),
    "the last snapshot cut by 300": lambda folder: _cut(_snapshots(folder)[-1], 300),
    "a bit of the last snapshot flipped": lambda folder: _flip(_snapshots(folder)[-1], 130),
    "a bit of every snapshot flipped": _all_snapshots(lambda path: _flip(path, 130)),
    "the length in the last snapshot": lambda folder: _flip(_snapshots(folder)[-1], 10),
    "the magic of the last snapshot": lambda folder: _flip(_snapshots(folder)[-1], 16),
    "zeros after the last snapshot": lambda folder: _write(
        _snapshots(folder)[-1], _snapshots(folder)[-1].read_bytes() + bytes(100)
    ),
    "a snapshot beyond the log": _foreign_snapshot,
    "a part of a snapshot": lambda folder: _write(
        folder / "00000000000000000033-0000000001.checkpoint.part", b"x"
    ),
    "a deleted snapshot": lambda folder: _write(
        folder / "00000000000000000033-0000000001.checkpoint.deleted", b"x"
    ),
    "a snapshot with a wide number": lambda folder: _write(
        folder / "99999999999999999999-0000000001.checkpoint", b""
    ),
    "a snapshot of another name": lambda folder: _write(folder / "x.checkpoint", b""),
    "the log torn by 7": lambda folder: _cut(_last_log(folder), 7),
    "the log torn by 500": lambda folder: _cut(_last_log(folder), 500),
    "a bit of the log flipped": lambda folder: _flip(
        _last_log(folder), _last_log(folder).stat().st_size // 2
    ),
    "the last bit of the log flipped": lambda folder: _flip(_last_log(folder), -1),
    "zeros after the log": lambda folder: _write(
        _last_log(folder), _last_log(folder).read_bytes() + bytes(1000)
    ),
    "the log empty": lambda folder: _write(_last_log(folder), b""),
    "no log": _without_logs,
    "no log and no snapshot": _without_logs_and_snapshots,
    "no partition.metadata": _remove("partition.metadata"),
    "no leader epochs": _remove("leader-epoch-checkpoint"),
    "empty partition.metadata": lambda folder: _write(folder / "partition.metadata", b""),
    "the id of another topic": lambda folder: _write(
        folder / "partition.metadata", b"version: 0\ntopic_id: JHz0NZ6tQNiQ2Mm2kGlrHQ\n"
    ),
    "bad leader epochs": lambda folder: _write(folder / "leader-epoch-checkpoint", b"0\n1\n0\n"),
    "an index with no number": lambda folder: _write(folder / "x.index", b""),
    "an empty index": lambda folder: _write(_last_log(folder).with_suffix(".index"), b""),
}
