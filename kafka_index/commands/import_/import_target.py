"""The data directory of an import: its lock, and the partitions that may be replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Self

from kafka_index.commands.import_.import_manifest import is_import, partition_names
from kafka_index.commands.import_.import_settings import ImportMode
from kafka_index.commands.import_.partition_import import ImportedPartition, not_an_import
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.paths import local_path, refuse_overlap
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.staging import (
    create_staging,
    publish_directory,
    remove_directory,
    staging_directory,
)


def import_root(output: str, inputs: Iterable[str]) -> str:
    """Return the data directory of an import as an absolute path, links resolved.

    Raises `InputError` if it is not local, or overlaps an input.
    """
    root = os.path.realpath(local_path(output))
    refuse_overlap(root, output, inputs)
    return root


class ImportTarget:
    """A data directory, held against brokers and other runs while it is open.

    The root is an absolute local path, made if it does not exist; partitions wait in the staging
    folder, by default a new one.
    """

    def __init__(self, root: str, mode: ImportMode, *, staging: str | None = None) -> None:
        self.root = root
        self.staging = staging or staging_directory(root)
        self._mode = mode
        self._is_resumed = staging is not None
        self._published: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the directory, and remove the leftovers of killed runs."""
        with ExitStack() as stack:
            try:
                os.makedirs(self.root, exist_ok=True)
            except OSError as error:
                raise publish_error(error, self.root, "make the output") from error
            stack.enter_context(DirectoryLock.of_data_directories([self.root]))
            if self._mode is ImportMode.OVERWRITE:
                check_overwrite(self.root)
            stack.callback(self.remove_staging)
            if not self._is_resumed:
                create_staging(self.staging)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove unpublished partitions, and release the directory."""
        self._stack.close()

    def publish(self, partition: ImportedPartition) -> None:
        """Give a partition its place."""
        if not partition.is_published:
            publish_directory(self.root, partition.staged)
        self._published.add(partition.staged.partition.directory_name)

    def remove_staging(self) -> None:
        """Remove partitions that were not published, or were replaced."""
        remove_directory(self.staging)

    def remove_others(self) -> None:
        """Remove the partitions that the new ones replace without having their names."""
        if self._mode is not ImportMode.OVERWRITE:
            return
        for name in partition_names(self.root):
            if name not in self._published:
                path = os.path.join(self.root, name)
                if not is_import(path):
                    raise not_an_import(path)
                try:
                    os.rename(path, os.path.join(self.staging, name))
                except OSError as error:
                    raise publish_error(error, path, "remove the partition") from error


def check_overwrite(root: str) -> None:
    """Refuse to overwrite a directory with a partition that is not as an import wrote it."""
    for name in partition_names(root):
        if not is_import(os.path.join(root, name)):
            raise not_an_import(os.path.join(root, name))
