"""The journal of an unfinished restore: its plan, and the partitions that it has finished.

Its first line is the plan. It grows by a line per finished partition, written when all files of the
partition are durable, and is removed by the last step of all: until then, the same restore can be
run again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from kafka_index.errors import InputError, PublishError, printable
from kafka_index.layout.names import TopicPartition
from kafka_index.restore.restored_partition import GroupOffset, LostRange, RestoredPartition
from kafka_index.storage import AtomicFile, make_durable, publish_error

JOURNAL_FILE = ".kafka-index-restore.journal"
_VERSION = 3
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BegunPlan:
    """The part of a plan that the journal keeps."""

    digest: str
    topic_ids: dict[str, str]
    until_ms: int | None = None


class Journal:
    """The journal in an output directory."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._path = os.path.join(output, JOURNAL_FILE)

    def begun(self) -> BegunPlan | None:
        """Return the plan that was begun here; None for none."""
        try:
            with open(self._path, encoding="utf-8") as file:
                plan = json.loads(file.readline())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error, "read") from error
        except ValueError:
            plan = None
        if not isinstance(plan, dict) or plan.get("version") != _VERSION:
            raise InputError(
                "the unfinished restore is that of another version",
                path=self._path,
                hint="restore to an empty --output, or complete it with the version that began it",
            )
        return BegunPlan(
            str(plan.get("digest")), dict(plan.get("topic_ids", {})), plan.get("until_ms")
        )

    def begin(self, plan: BegunPlan) -> None:
        """Record the plan, durably, before anything else is written."""
        with AtomicFile(self._path, what="journal") as file:
            file.write(f"{json.dumps({'version': _VERSION, **asdict(plan)})}\n".encode())
            file.commit()
        for path, error in make_durable([self._output]).items():
            raise publish_error(error, path, "make the journal durable")

    def finished(self) -> dict[TopicPartition, RestoredPartition]:
        """Return the partitions that are finished, and as they were left."""
        last = {}
        for line in self._lines():
            restored = _decoded(line)
            last[restored.partition] = restored, line["files"]
        found = {}
        for partition, (restored, files) in last.items():
            if restored.is_left_out or files is None:
                continue
            directory = os.path.join(self._output, partition.directory_name)
            if _files_digest(directory) != files:
                raise InputError(
                    "the partition has changed since it was restored",
                    path=directory,
                    hint="was a broker started on this output? restore to an empty directory",
                )
            found[partition] = restored
        return found

    def add(self, restored: Iterable[RestoredPartition]) -> None:
        """Record finished partitions, durably."""
        self._append(
            asdict(each)
            | {"files": _files_digest(os.path.join(self._output, each.partition.directory_name))}
            for each in restored
        )

    def reopen(self, restored: RestoredPartition) -> None:
        """Record, durably, that a partition is not finished any more."""
        self._append([asdict(restored) | {"files": None}])

    def _append(self, lines: Iterable[Mapping[str, object]]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._error(error, "write") from error

    def remove(self) -> None:
        """Remove the journal: the restore is complete, and its exit code and losses are printed.

        One that stays, or that a crash brings back, does not harm: a broker passes over it, and
        the restore can be run again until a broker has started.
        """
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            _LOGGER.warning(
                "the restore is complete, but cannot remove its journal %s: %s; remove it",
                printable(self._path),
                error.strerror,
            )

    def _error(self, error: OSError, verb: str) -> PublishError:
        return publish_error(error, self._path, f"{verb} the journal")

    def _lines(self) -> list[dict[str, object]]:
        try:
            with open(self._path, "r+b") as file:
                data = file.read()
                # What follows the last line end was being written when the run was killed.
                whole = data.rfind(b"\n") + 1
                file.truncate(whole)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error, "read") from error
        return list(filter(None, map(_parsed, data[:whole].splitlines()[1:])))


def _parsed(line: bytes) -> dict[str, object] | None:
    """Return a line; None for one that could not be written whole before the next one."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _decoded(line: dict[str, object]) -> RestoredPartition:
    fields = {name: value for name, value in line.items() if name != "files"}
    partition, lost, clamped = (fields.pop(name) for name in ("partition", "lost", "clamped"))
    if not (isinstance(partition, dict) and isinstance(lost, list) and isinstance(clamped, list)):
        raise InputError("a line of the journal is malformed", found=repr(line)[:80])
    return RestoredPartition(
        partition=TopicPartition(**partition),
        lost=[LostRange(**each) for each in lost],
        clamped=[GroupOffset(**each) for each in clamped],
        **fields,  # type: ignore[arg-type]
    )


def _files_digest(directory: str) -> str:
    """Return a digest that changes with every write, replacement, addition or removal of a file."""
    digest = hashlib.sha256()
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry.name, entry.stat()) for entry in entries)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise publish_error(error, directory, "look at a restored partition") from error
    for name, info in found:
        digest.update(f"{name} {info.st_ino} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()
