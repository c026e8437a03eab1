"""The files of an unfinished restore: its plan, and the partitions that it has finished.

Both are removed when the restore is complete. The journal grows by a line per finished partition,
written when all files of the partition are durable.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.restore.lost_ranges import LostRange
from kafka_index.restore.restored_partition import OffsetBeyondEnd, RestoredPartition
from kafka_index.storage import AtomicFile, make_durable, publish_error

PLAN_FILE = ".kafka-index-restore.plan"
JOURNAL_FILE = ".kafka-index-restore.journal"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class BegunPlan:
    """What is kept of a plan.

    Parameters
    ----------
    digest : str
        Of the plan.
    topic_ids : dict of str to str
        The ids that were made for topics without one.
    """

    digest: str
    topic_ids: dict[str, str]


class Journal:
    """The plan and journal in an output directory.

    Parameters
    ----------
    output : str
        The output directory.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._plan = os.path.join(output, PLAN_FILE)
        self._path = os.path.join(output, JOURNAL_FILE)

    def begun(self) -> BegunPlan | None:
        """Return the plan that was begun here; None for none.

        Raises
        ------
        InputError
            The plan file is not one of this tool.
        """
        try:
            with open(self._plan, encoding="utf-8") as file:
                plan = json.load(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise publish_error(error, self._plan, "read the plan") from error
        except ValueError as error:
            raise InputError("the plan of a restore cannot be read", path=self._plan) from error
        if not isinstance(plan, dict) or plan.get("version") != _VERSION:
            raise InputError(
                "the plan is that of another version",
                path=self._plan,
                hint="restore to an empty --output, or complete it with the version that began it",
            )
        return BegunPlan(str(plan.get("digest")), dict(plan.get("topic_ids", {})))

    def begin(self, plan: BegunPlan) -> None:
        """Record the plan, durably, before anything else is written.

        Raises
        ------
        PublishError
            It cannot be written.
        """
        with AtomicFile(self._plan, what="plan") as file:
            file.write(json.dumps({"version": _VERSION, **asdict(plan)}).encode())
            file.commit()
        _sync([self._output])

    def finished(self) -> dict[TopicPartition, RestoredPartition]:
        """Return the partitions that are finished, and as they were left.

        Raises
        ------
        InputError
            The files of one have changed since: a broker may have used them.
        """
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
        """Record finished partitions, durably.

        Raises
        ------
        PublishError
            The journal cannot be written.
        """
        self._append(
            asdict(each)
            | {"files": _files_digest(os.path.join(self._output, each.partition.directory_name))}
            for each in restored
        )

    def reopen(self, restored: RestoredPartition) -> None:
        """Record, durably, that a partition is not finished any more.

        Raises
        ------
        PublishError
            The journal cannot be written.
        """
        self._append([asdict(restored) | {"files": None}])

    def _append(self, lines: Iterable[Mapping[str, object]]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise publish_error(error, self._path, "write the journal") from error

    def remove(self) -> None:
        """Remove both files: the restore is complete.

        Raises
        ------
        PublishError
            One cannot be removed.
        """
        # The plan first: without one, nothing is taken for a restore to be completed.
        for path in (self._plan, self._path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise publish_error(error, path, "remove the plan") from error
        _sync([self._output])

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
            raise publish_error(error, self._path, "read the journal") from error
        return [json.loads(line) for line in data[:whole].splitlines()]


def _decoded(line: dict[str, object]) -> RestoredPartition:
    fields = {name: value for name, value in line.items() if name != "files"}
    partition, lost, clamped = (fields.pop(name) for name in ("partition", "lost", "clamped"))
    if not (isinstance(partition, dict) and isinstance(lost, list) and isinstance(clamped, list)):
        raise InputError("a line of the journal is malformed", found=repr(line)[:80])
    return RestoredPartition(
        partition=TopicPartition(**partition),
        lost=[LostRange(**each) for each in lost],
        clamped=[OffsetBeyondEnd(**each) for each in clamped],
        **fields,  # type: ignore[arg-type]
    )


def _files_digest(directory: str) -> str:
    """Return what changes when a file of a directory is written, replaced, added or removed."""
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


def _sync(paths: list[str]) -> None:
    for path, error in make_durable(paths).items():
        raise publish_error(error, path, "make a file durable")
