"""The folders that driver and executors write to: whether they are the same ones.

The driver leaves a marker, a hidden file of a name that no other run has, and every task looks for
it before it writes. An executor that sees another file system under the same path would otherwise
write its files there, and report them as built.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kafka_index.errors import EngineError
from kafka_index.execution.tasks import new_run_id
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import publish_error

NOT_SHARED_HINT = (
    "give a place that all nodes see under one path: an object store, HDFS, or a mounted file "
    "system (docs/clusters.md)"
)
_MARKER = ".kafka-index.{run_id}.shared"
_LEFTOVER = re.compile(r"\.kafka-index\.[0-9a-f]{16}\.shared")


@dataclass(frozen=True, slots=True)
class SharedTarget:
    """Markers by which a task recognises the folders of the driver.

    Each is a path in a folder that exists as long as the run. Stores that are no file systems are
    the same from everywhere and need none.
    """

    markers: tuple[str, ...] = ()

    def check(self) -> None:
        """Look for the markers, in a task.

        Raises `EngineError` if this executor does not see one.
        """
        for marker in self.markers:
            if not os.path.exists(marker):
                raise EngineError(
                    f"the executor on {socket.gethostname()} does not see the driver's folder",
                    path=os.path.dirname(marker),
                    hint=NOT_SHARED_HINT,
                )


@contextlib.contextmanager
def shared_target(directories: Sequence[str]) -> Iterator[SharedTarget]:
    """Mark existing folders, or URIs, as those of this run, as long as the context is open.

    Enter it while holding their locks: a marker that exists was left by a killed run. Raises
    `PublishError` if a marker cannot be written.
    """
    name = _MARKER.format(run_id=new_run_id())
    markers: list[str] = []
    try:
        for directory in directories:
            if is_remote(directory):
                continue
            marker = os.path.join(directory, name)
            try:
                for entry in os.listdir(directory):
                    if _LEFTOVER.fullmatch(entry):
                        os.unlink(os.path.join(directory, entry))
                os.close(
                    os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                )
                markers.append(marker)
            except OSError as error:
                raise publish_error(error, directory, "mark the folder") from error
        yield SharedTarget(tuple(markers))
    finally:
        for marker in markers:
            with contextlib.suppress(OSError):
                os.unlink(marker)
