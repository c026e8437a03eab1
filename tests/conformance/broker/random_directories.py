"""Data directories as crashes, copies and hands leave them: random changes of a stopped broker's.

Each change takes any file, name or field of the directory.
"""

# ruff: noqa: RUF001, digits of other scripts are meant

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kafka_index.core.format.names import INDEX_SUFFIXES

from .broker import CLEAN_SHUTDOWN

CHECKPOINTS = tuple(
    f"{name}-offset-checkpoint" for name in ("recovery-point", "replication", "log-start")
)
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint", ".txt", "")
TRANSIENT = ("", "", ".swap", ".cleaned", ".deleted")
STEMS = (
    *("99999999999999999999", "9223372036854775807", "9223372036854775808", "00000000000000000007"),
    *("²", "١", "+5", "-5", "5", "", "abc", "1e3", " 7", "00000000000000000000", "0x10", "７"),
)
DIRECTORIES = (
    *(
        "my backup-2",
        "backup",
        "lost+found",
        "random-99",
        "random-x",
        "random-+1",
        "random-²",
        "-1",
    ),
    *("a-2147483648", "x-١", "random--1", "remote-log-index-cache", ".hidden", ".a-0", "tmp-"),
    *("é-3", "__cluster_metadata-0", "__cluster_metadata-1", "__cluster_metadata-x", "a b c"),
    *(
        "random-0-1",
        "random-0.abc-delete",
        "random-9.abc-stray",
        "random-9.abc-future",
        "random-delete",
    ),
    *("a-stray", "random-0.a b-delete", "random-0.a.b-stray", "x.y-delete", "random-1.abc-future"),
    *("-x.y-stray", "gone-0", "gone-0.1-delete", "a-b.c-stray", "a-1.c-future"),
    *("other-1-0.x-stray", "a-.b-delete"),
)
PROPERTIES = (
    *("version=1", "version=0", "version=2", "version= 1 ", "version=+1", "version=x", "version"),
    *("version=١", "#version=1", "node.id=1", "node.id=2", "node.id=x", "node.id=+1", "node.id=1 "),
    *("node.id:1", "node.id 1", "node.id", "nodeid=1", "node.id=99999999999", "broker.id=1"),
    *("broker.id=2", "cluster.id=", "cluster.id=other", "#cluster.id", "cluster.id=a\\", "\\"),
    *("directory.id=", "directory.id=AAAAAAAAAAAAAAAAAAAAAQ", "directory.id=x", "directory.id"),
    *("directory.id=AAAAAAAAAAAAAAAAAAAAAA==", "directory.id=JHz0NZ6tQNiQ2Mm2kGlrHQ", "x=\\u12"),
    *("directory.id=AAAAAAAAAACAAAAAAAAAAA", "directory.id=JHz0NZ6tQNiQ2Mm2kGlrH+", "x=\\u0031"),
    *("node.id=\\u0031", "no\\\nde.id=1", "  version = 1", "!version=1", "version\\=1"),
    "\\u00e9=1",
)
METADATA = (
    *("version: 7\ntopic_id: ID\n", "version: +0\ntopic_id: ID\n", "v: 0\nid: ID\n"),
    *("version:\t0\n", "version:\t0\ntopic_id:\tID\n", "version: 0\ntopic_id: ID=="),
    *("version:0\ntopic_id: ID\n", "version: 0 \ntopic_id: ID\n", "version: 0\ntopic_id: ID \n"),
    *("version:\v0\ntopic_id: ID\n", "version: ١\ntopic_id: ID\n", "version: ²\ntopic_id: ID\n"),
    *("version: -1\ntopic_id: ID\n", "version: 0\r\ntopic_id: ID\r\n", "version: 0\rtopic_id: ID"),
    *("version: 0\n\ntopic_id: ID\n", "version: 0\ntopic_id: ID=\n"),
    *("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", "version: 0"),
    *("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n", "version: 0\ntopic_id: OTHER\n", "\n\n"),
    *("version: 0\ntopic_id: JHz0NZ6tQNiQ2Mm2kGlrHQ\n", "version: 0\ntopic_id: x\n"),
    *("\ufeffversion", "version: 0: \ntopic_id: ID: \n", "version: : 0\ntopic_id: ID\n"),
    *("version: 0: 1\ntopic_id: ID", "version:\u00a00\ntopic_id: ID\n"),
    *("version: 0\ntopic_id: ID: \n", ": 0\n: ID\n", "  : 0\n: ID"),
    *("version: 2147483648\ntopic_id: ID\n", "version: 0\ntopic_id: ID\u2028\n"),
    "version: 00\na: ID\n",
)
NUMBERS = (
    *("0", "1", "5", "300", "10000000", "-1", "-5", "9223372036854775807", "9223372036854775808"),
    *("x", "+7", "١", "²", "", "1.5", "0x1", "-9223372036854775808"),
)


def _pipes(folder: str, names: list[str]) -> list[str]:
    """Return the names in a folder that a copy leaves out."""
    return [name for name in names if (Path(folder) / name).is_fifo()]


@dataclass(slots=True)
class RandomDirectory:
    """A copy of a broker's directories, and what was done to it."""

    root: Path
    draw: random.Random
    topic_ids: dict[str, str]
    changes: list[str] = field(default_factory=list)
    log_dirs: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        self.log_dirs = [*self.data]

    @property
    def data(self) -> list[Path]:
        """The data directories."""
        return [self.root / "data", self.root / "data-2"]

    @property
    def metadata(self) -> Path:
        """The directory of the metadata log."""
        return self.root / "metadata"

    def partitions(self) -> list[Path]:
        """The partition directories, and what is called like one."""
        return sorted(
            path
            for data in self.data
            for path in data.iterdir()
            if "-" in path.name and path.is_dir()
        )

    def change(self) -> None:
        """Make one random change."""
        draw = self.draw
        kinds: tuple[tuple[int, Callable[[], str]], ...] = (
            (8, lambda: self._change_file(self._file_of_a_partition())),
            (3, lambda: self._change_file(self._file_of_the_root())),
            (4, self._add_file),
            (3, self._add_directory),
            (3, self._change_properties),
            (3, self._change_checkpoint),
            (2, self._change_metadata),
            (2, self._change_epochs),
            (2, self._change_partition),
            (1, self._copy_marked),
            (1, self._add_log_dir),
        )
        (one,) = draw.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        self.changes.append(one())

    def draw_markers(self) -> None:
        """Keep the markers of a clean stop, or not, also with the recovery points."""
        for data in self.data:
            if self.draw.random() < 0.5:
                (data / CLEAN_SHUTDOWN).unlink(missing_ok=True)
                self.changes.append(f"{data.name} unclean")
                if self.draw.random() < 0.5:
                    path = data / CHECKPOINTS[0]
                    if path.is_file():
                        path.unlink()
                        self.changes.append(f"{data.name} without recovery points")

    def _file_of_a_partition(self) -> Path:
        folder = self.draw.choice(self.partitions())
        return self.draw.choice(sorted(folder.iterdir()) or [folder / "partition.metadata"])

    def _file_of_the_root(self) -> Path:
        data = self.draw.choice([*self.data, self.metadata])
        files = sorted(path for path in data.iterdir() if path.name != "__cluster_metadata-0")
        return self.draw.choice([path for path in files if not path.is_dir()] or [data / "x"])

    def _change_file(self, path: Path) -> str:  # noqa: C901, PLR0912, one case each
        draw = self.draw
        kind = draw.choice(
            (
                *("absent", "empty", "cut", "flip", "flip", "zeros", "garbage", "directory"),
                *("dangling", "astray", "circular", "null", "linked", "byte", "foreign"),
                # A broker would wait for ever to read another file, or to write it.
                *(("pipe",) if path.suffix in INDEX_SUFFIXES else ()),
            )
        )
        if not path.is_file():
            return f"{path.name}: nothing"
        data = path.read_bytes()
        path.unlink()
        at = draw.randrange(len(data)) if data else 0
        match kind:
            case "absent":
                pass
            case "empty":
                path.write_bytes(b"")
            case "cut":
                path.write_bytes(data[:at])
            case "flip" if data:
                changed = data[at] ^ (1 << draw.randrange(8))
                path.write_bytes(data[:at] + bytes([changed]) + data[at + 1 :])
            case "byte" if data:
                at = min(draw.choice((0, 3, 7, 8, 11, 12, 16, 17, 20, 22, 26, 57, 60)), at)
                value = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
                path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            case "zeros":
                path.write_bytes(data + bytes(draw.randrange(1, 100)))
            case "garbage":
                path.write_bytes(data + draw.randbytes(draw.randrange(1, 100)))
            case "directory":
                path.mkdir()
            case "dangling":
                path.symlink_to("nothing-here")
            case "astray":
                path.symlink_to("/nonexistent/file")
            case "circular":
                path.symlink_to(path.name)
            case "null":
                path.symlink_to(os.devnull)
            case "pipe":
                os.mkfifo(path)
            case "linked":
                aside = self.root / f"aside-{len(self.changes)}"
                aside.write_bytes(data)
                path.symlink_to(aside)
            case "foreign":
                others = sorted(one for one in path.parent.iterdir() if one.suffix == path.suffix)
                others = [one for one in others if one.is_file()]
                path.write_bytes(draw.choice(others).read_bytes() if others else data)
            case _:
                path.write_bytes(data)
        return f"{path.relative_to(self.root)}: {kind} {at}"

    def _add_file(self) -> str:
        draw = self.draw
        folder = draw.choice([*self.partitions(), *self.partitions(), *self.data])
        stems = [path.stem for path in folder.glob("*.log")]
        stem = draw.choice([*STEMS, *stems[:2]])
        path = folder / f"{stem}{draw.choice(SUFFIXES)}{draw.choice(TRANSIENT)}"
        if os.path.lexists(path) or path == folder:
            return "nothing"
        kind = draw.choice(("empty", "empty", "garbage", "copy", "directory", "dangling"))
        match kind:
            case "empty":
                path.write_bytes(b"")
            case "garbage":
                path.write_bytes(draw.randbytes(draw.randrange(1, 200)))
            case "copy":
                logs = sorted(folder.glob("*.log")) or [folder / "none"]
                log = draw.choice(logs)
                path.write_bytes(log.read_bytes() if log.is_file() else b"")
            case "directory":
                path.mkdir()
            case _:
                path.symlink_to("nothing-here")
        return f"{path.relative_to(self.root)}: added {kind}"

    def _add_directory(self) -> str:
        draw = self.draw
        path = draw.choice(self.data) / draw.choice(DIRECTORIES)
        if os.path.lexists(path):
            return "nothing"
        kind = draw.choice(("empty", "empty", "copy", "copy", "file", "link", "dangling"))
        match kind:
            case "empty":
                path.mkdir()
            case "copy":
                shutil.copytree(draw.choice(self.partitions()), path, symlinks=True, ignore=_pipes)
            case "file":
                path.write_bytes(b"")
            case "link":
                path.symlink_to(draw.choice(self.partitions()))
            case _:
                path.symlink_to("nothing-here")
        return f"{path.relative_to(self.root)}/: added {kind}"

    def _copy_marked(self) -> str:
        """Leave what a deletion or a former start has renamed, and change a file of it."""
        draw = self.draw
        mark = draw.choice(("delete", "stray", "future"))
        folder = draw.choice(self.partitions())
        path = draw.choice(self.data) / f"{folder.name.partition('.')[0]}-7.abc-{mark}"
        if draw.random() < 0.5:
            path = draw.choice(self.data) / f"{folder.name}.abc-{mark}"
        if path.exists():
            return "nothing"
        shutil.copytree(folder, path, symlinks=True, ignore=_pipes)
        files = sorted(one for one in path.iterdir() if one.is_file()) or [path / "none"]
        return f"{path.relative_to(self.root)} marked, {self._change_file(draw.choice(files))}"

    def _add_log_dir(self) -> str:
        """Let the settings name one more data directory."""
        path = self.root / "data-3"
        kind = self.draw.choice(("absent", "empty", "formatted"))
        if path in self.log_dirs or not (self.data[0] / "meta.properties").is_file():
            return "nothing"
        self.log_dirs.append(path)
        if kind != "absent":
            path.mkdir()
        if kind == "formatted":
            lines = (self.data[0] / "meta.properties").read_bytes().splitlines(keepends=True)
            kept = (line for line in lines if not line.startswith(b"directory.id"))
            (path / "meta.properties").write_bytes(b"".join(kept))
        return f"{path.name}: {kind}"

    def _change_properties(self) -> str:
        draw = self.draw
        path = draw.choice([*self.data, self.metadata]) / "meta.properties"
        if not path.is_file():
            return "nothing"
        lines = path.read_bytes().decode(errors="replace").splitlines()
        others = [line for line in self._other_properties() if line]
        kind = draw.choice(("remove", "replace", "add", "replace", "other"))
        at = draw.randrange(len(lines)) if lines else 0
        line = draw.choice(PROPERTIES)
        if kind == "remove" and lines:
            line = lines.pop(at)
        elif kind == "replace" and lines:
            name = line.lstrip("#!").partition("=")[0].strip()
            result = [i for i, one in enumerate(lines) if one.startswith(name)]
            lines[result[0] if result else at] = line
        elif kind == "other" and others:
            line = draw.choice(others)
            name = line.partition("=")[0]
            lines = [line if one.startswith(name) else one for one in lines]
        else:
            lines.insert(at, line)
        end = draw.choice(("\n", "\n", "\r\n", "\r"))
        path.write_bytes((end.join(lines) + end).encode())
        return f"{path.relative_to(self.root)}: {kind} {line!r}"

    def _other_properties(self) -> list[str]:
        paths = [data / "meta.properties" for data in (*self.data, self.metadata)]
        return [
            line
            for path in paths
            if path.is_file()
            for line in path.read_bytes().decode(errors="replace").splitlines()
        ]

    def _change_checkpoint(self) -> str:
        draw = self.draw
        path = draw.choice(self.data) / draw.choice(CHECKPOINTS)
        if not path.is_file():
            return "nothing"
        lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] or ["0", "0"]
        name = draw.choice(self.partitions()).name
        topic, _, number = name.rpartition("-")
        offset = draw.choice(NUMBERS)
        kind = draw.choice(("entry", "entry", "only", "count", "version", "field", "bytes", "end"))
        match kind:
            case "entry":
                rest = [one for one in lines[2:] if not one.startswith(f"{topic} {number} ")]
                lines = ["0", str(len(rest) + 1), *rest, f"{topic} {number} {offset}"]
            case "only":
                lines = ["0", "1", f"{topic} {number} {offset}"]
            case "count":
                lines[1:2] = [offset]
            case "version":
                lines[0] = offset
            case "field" if len(lines) > 2:
                at = draw.randrange(2, len(lines))
                words = lines[at].split(" ")
                words[draw.randrange(len(words))] = offset
                lines[at] = draw.choice((" ", "\t", "  ", "\v")).join(words)
            case "end":
                lines.append(draw.choice(("", " ", "x", " a 0 1", "a 0 1 ")))
            case _:
                path.write_bytes("\n".join(lines).encode() + b"\xff\n")
                return f"{path.relative_to(self.root)}: not text"
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return f"{path.relative_to(self.root)}: {kind} {name} {offset!r}"

    def _change_metadata(self) -> str:
        draw = self.draw
        folder = draw.choice(self.partitions())
        topic = folder.name.rpartition("-")[0]
        own = self.topic_ids.get(topic, "JHz0NZ6tQNiQ2Mm2kGlrHQ")
        other = draw.choice(sorted(self.topic_ids.values()))
        text = draw.choice(METADATA)
        path = folder / "partition.metadata"
        if path.is_dir():
            return "nothing"
        path.unlink(missing_ok=True)
        path.write_bytes(text.replace("OTHER", other).replace("ID", own).encode())
        return f"{path.relative_to(self.root)}: {text!r}"

    def _change_epochs(self) -> str:
        draw = self.draw
        path = draw.choice(self.partitions()) / "leader-epoch-checkpoint"
        first, second = draw.choice(NUMBERS), draw.choice(NUMBERS)
        text = draw.choice(
            (
                f"0\n1\n{first} {second}\n",
                f"0\n1\n0 {second}\n",
                f"0\n2\n0 0\n{first} {second}\n",
                f"0\n2\n{first} {second}\n0 0\n",
                f"{first}\n1\n0 0\n",
                f"0\n{first}\n0 0\n",
                f"0\n1\n0 0 {first}\n",
                "0\n2\n0 0\n1 0\n",
                "0\n3\n5 0\n3 40\n7 20\n",
            )
        )
        if path.is_dir():
            return "nothing"
        path.unlink(missing_ok=True)
        path.write_text(text)
        return f"{path.relative_to(self.root)}: {text!r}"

    def _change_partition(self) -> str:
        draw = self.draw
        folder = draw.choice(self.partitions())
        other = self.data[1] if folder.parent == self.data[0] else self.data[0]
        kind = draw.choice(
            ("moved", "copied", "removed", "file", "linked", "no logs", "no indexes", "replaced")
        )
        kind = draw.choice((kind, "no snapshots"))
        if os.path.lexists(other / folder.name) and kind in ("moved", "copied", "replaced"):
            return "nothing"
        match kind:
            case "moved":
                shutil.move(folder, other / folder.name)
            case "copied":
                shutil.copytree(folder, other / folder.name, symlinks=True)
            case "replaced":
                # A future replica, where the metadata has the partition already.
                shutil.move(folder, other / folder.name)
                future = folder.with_name(f"{folder.name}.abc-future")
                shutil.copytree(other / folder.name, future, symlinks=True)
            case "linked":
                aside = self.root / f"aside-{len(self.changes)}"
                shutil.move(folder, aside)
                folder.symlink_to(aside)
            case "removed" | "file" if not folder.is_symlink():
                shutil.rmtree(folder)
                if kind == "file":
                    folder.write_bytes(b"")
            case _:
                ending = {"no logs": ".log", "no snapshots": ".snapshot"}.get(kind, "index")
                for path in folder.iterdir():
                    if path.name.endswith(ending) and not path.is_dir():
                        path.unlink()
        return f"{folder.relative_to(self.root)}: {kind}"


def draw_directory(base: Path, root: Path, seed: str, topic_ids: dict[str, str]) -> RandomDirectory:
    """Copy the directories of a stopped broker, and change one to three things of the copy."""
    for name in ("data", "data-2", "metadata"):
        shutil.copytree(base / name, root / name, ignore=shutil.ignore_patterns(".lock"))
    generated = RandomDirectory(root, random.Random(seed), topic_ids)
    generated.draw_markers()
    for _ in range(generated.draw.choice((1, 1, 1, 2, 2, 3))):
        generated.change()
    return generated
