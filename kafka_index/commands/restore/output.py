"""The output directory: checks, state file, journal, files in the root directory, and logs.

The output of an unfinished restore has no clean shutdown file, and no ``meta.properties``. No
broker starts without ``meta.properties``. These two files are written before the logs, under hidden
names, and renamed at the end (`LastFiles`). When all files of a partition are durable, the journal
gets a line for the partition. A broker ignores the state file and the journal. A restore that was
killed after its last step can be run again, since the state file and the journal are not removed.

Logs are cloned, copied or linked; the dump is only read. A clone (reflink) shares disk blocks with
the log of the dump until one of the two files is written. A hard link is the same file: a broker
that truncates the log also truncates the log of the dump.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from msgspec import MsgspecError

from kafka_index.commands.restore.cluster import (
    Identity,
    has_separate_metadata_log,
    refuse_identity,
)
from kafka_index.commands.restore.plan import RestorePlan
from kafka_index.commands.restore.request import Link
from kafka_index.commands.restore.result import (
    RestoredPartition,
)
from kafka_index.core.cluster.replicas import Dump
from kafka_index.core.errors import (
    InputError,
)
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    FIRST_SNAPSHOT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    METADATA_LOG,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.core.format.state_files import (
    Int64,
    TopicId,
    convert_fields,
)
from kafka_index.core.fs.durable_files import (
    AtomicFile,
    clone_file,
    publish_error,
    publishing,
    sync,
)
from kafka_index.core.fs.inputs import (
    refuse_linked_out,
)
from kafka_index.core.fs.paths import local_path, refuse_overlap
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.fs.uris import refuse_remote
from kafka_index.core.log.scan.file_records import log_changed, open_log
from kafka_index.core.logdir.data_directory import reject_running
from kafka_index.core.logdir.metadata_files import read_properties
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.output import (
    STAGING,
    LastFiles,
    RunState,
    StateFile,
)

STATE_FILE = ".kafka-index-restore.json"
JOURNAL_FILE = ".kafka-index-restore.journal"
#: The files that `kafka-storage.sh format` writes.
_FORMATTED = frozenset({META_PROPERTIES, BOOTSTRAP_CHECKPOINT, METADATA_LOG})
#: The file that seeding adds if the output is also the metadata log directory.
_SEEDED = frozenset({BOOTSTRAP_CHECKPOINT + ".orig"})
# Files of runs that were killed before they wrote a state file.
_KILLED_RUN_FILES = re.compile(r"\.(kafka-index[A-Za-z0-9_.-]+|[A-Za-z._-]+\.tmp)")
_ROOT_FILES = frozenset(
    {
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_CHECKPOINT,
        LOG_START_CHECKPOINT,
        CLEANER_CHECKPOINT,
    }
)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A checked output directory: state file of an earlier run, and ``meta.properties``."""

    path: str
    earlier_state: RestoreState | None
    properties: Mapping[str, str]


def directory_to_write(user_path: str, label: str, inputs: Iterable[str], *, hint: str) -> str:
    """Return the real path of an output directory; error messages call the directory `label`.

    Raises `InputError` if the path is remote, not a directory, or overlaps with an input, or if a
    broker runs on the directory.
    """
    refuse_remote(user_path, f"{label} must be a local directory", hint=hint)
    path = os.path.realpath(local_path(user_path))
    refuse_overlap(path, user_path, inputs, hint=hint)
    if os.path.isdir(path):
        reject_running(path, f"nothing was written; {hint}")
    elif os.path.lexists(path):
        raise InputError(f"{label} is not a directory", path=user_path, hint=hint)
    return path


def check_output(plan: RestorePlan) -> RestoreTarget:
    """Check the output directory, and create it if it does not exist."""
    hint = "choose another --output"
    path = directory_to_write(plan.request.output, "the output", plan.inputs, hint=hint)
    if os.path.isdir(path):
        target = _read_target(path, plan)
        if target.earlier_state is not None:
            return target
    store_of(path).make_writable_directory(path)
    return RestoreTarget(path, None, _read_properties(path))


def check_same_output(plan: RestorePlan, output: RestoreTarget, identity: Identity) -> None:
    """Check the output and the metadata output of a restore to the source cluster."""
    dump, metadata_output = plan.dump, plan.request.metadata_output
    is_resumed = output.earlier_state is not None
    if output.properties and (not is_resumed or output.properties != identity.properties):
        raise InputError(
            "the identity of the formatted output is not the identity of the source cluster",
            path=output.path,
            hint="give an empty --output",
        )
    if has_separate_metadata_log(dump) and metadata_output is None:
        raise InputError(
            "the metadata log is in a separate directory of the dump",
            path=dump.metadata_logs[0],
            hint="give --metadata-output DIR, an empty directory that becomes metadata.log.dir",
        )
    if metadata_output is not None:
        hint, inputs = "give another --metadata-output", [*plan.inputs, output.path]
        path = directory_to_write(metadata_output, "the metadata output", inputs, hint=hint)
        refuse_used_metadata(dump, path, is_resumed=is_resumed)


def recheck_output(output: RestoreTarget, plan: RestorePlan) -> RestoreTarget:
    """Check a locked output directory again.

    Another run or a broker may have used the directory between the first check and the lock.
    """
    # Only list the directory. This run has locked the broker's lock file: opening and closing the
    # file again would release the lock.
    target = _read_target(output.path, plan)
    has_started_since = target.earlier_state is not None and output.earlier_state is None
    if target.properties != output.properties and not has_started_since:
        raise InputError(
            "another process changed the output while this restore started",
            path=output.path,
            hint="check that no other restore is running, and run the command again",
        )
    if plan.metadata_output is not None:
        refuse_used_metadata(
            plan.dump, plan.metadata_output, is_resumed=target.earlier_state is not None
        )
    return target


def _read_target(path: str, plan: RestorePlan) -> RestoreTarget:
    names = set(os.listdir(path))
    if STATE_FILE in names:
        return _read_unfinished(path, names, plan)
    _refuse_foreign(path, names)
    return RestoreTarget(path, None, _read_properties(path))


def _read_unfinished(path: str, names: set[str], plan: RestorePlan) -> RestoreTarget:
    earlier_state = restore_state(path).read()
    if earlier_state is None or earlier_state.inputs != plan.digest:
        raise InputError(
            "the output has an unfinished restore of another input or other options",
            path=path,
            hint="give the input and options of the unfinished restore, or choose an empty "
            "--output",
        )
    partitions = {partition_plan.partition.directory_name for partition_plan in plan.partitions}
    foreign = {
        name
        for name in names.difference(_FORMATTED, _SEEDED, _ROOT_FILES, partitions, {BROKER_LOCK})
        if not _may_be_left_by_killed_run(name)
    }
    if foreign:
        raise InputError(
            "the output contains a restore and a file that the restore did not write",
            path=path,
            found=min(foreign),
            hint="choose another --output: a broker may have started on this directory",
        )
    return RestoreTarget(path, earlier_state, _read_properties(path))


def _refuse_foreign(path: str, names: set[str]) -> None:
    """Reject a directory with files that neither formatting nor a killed run writes."""
    for name in sorted(names):
        if name == BROKER_LOCK or _may_be_left_by_killed_run(name):
            continue
        if name not in _FORMATTED or not _is_formatted(path, name):
            raise InputError(
                "the output is not empty",
                path=path,
                found=name,
                hint="nothing was written; choose another --output, or empty the directory",
            )


def _may_be_left_by_killed_run(name: str) -> bool:
    """Return whether a killed run may have left a file or directory of this name."""
    return (_KILLED_RUN_FILES.fullmatch(name) or STAGING.fullmatch(name)) is not None


def _is_formatted(path: str, name: str) -> bool:
    file = os.path.join(path, name)
    if name != METADATA_LOG:
        return os.path.isfile(file)
    return os.path.isdir(file) and set(os.listdir(file)) <= {FIRST_SNAPSHOT}


def _read_properties(path: str) -> dict[str, str]:
    file = os.path.join(path, META_PROPERTIES)
    if os.path.exists(file):
        # An unfinished output may have been formatted again: the new ``meta.properties`` apply.
        refuse_identity(path, "format the output again")
        return read_properties(file) or {}
    return read_properties(last_files(path).hidden(META_PROPERTIES)) or {}


def refuse_used_metadata(dump: Dump, target: str, *, is_resumed: bool) -> None:
    """Reject a metadata log directory with files that an unfinished restore did not copy."""
    source = dump.metadata_logs[0]
    copied_names = {METADATA_LOG, BOOTSTRAP_CHECKPOINT, META_PROPERTIES} if is_resumed else set()
    foreign = _first_foreign_entry(target, copied_names)
    if foreign is None and is_resumed:
        sizes = {entry.name: entry.file_version()[0] for entry in scan_directory(source)}
        foreign = _first_foreign_entry(os.path.join(target, METADATA_LOG), set(sizes), sizes)
    if foreign is not None:
        raise InputError(
            "the metadata output is not an empty directory",
            path=target,
            found=foreign,
            hint="give another --metadata-output: a controller may have started on this directory",
        )


def _first_foreign_entry(
    directory: str, names: Collection[str], sizes: Mapping[str, int] | None = None
) -> str | None:
    """Return the first file that is not in `names`, or whose size differs from `sizes`."""
    if not os.path.isdir(directory):
        return None
    for entry in sorted(os.scandir(directory), key=attrgetter("name")):
        is_scratch = entry.name.startswith(".") and entry.name.endswith(".tmp")
        if entry.name == BROKER_LOCK or (is_scratch and names):
            continue
        is_changed = sizes is not None and entry.stat().st_size != sizes.get(entry.name)
        if entry.name not in names or is_changed:
            return entry.name
    return None


_VERSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreState(RunState):
    """The state file of a restore: plan digest, new topic IDs, and time of ``--until``."""

    topic_ids: dict[str, TopicId]
    until_ms: Int64 | None = None

    def begin(self, output: str) -> None:
        """Write an empty journal and the state file, durably, before other files."""
        # The directory entry of the journal must be durable before finished partitions are
        # appended.
        store_of(output).put(os.path.join(output, JOURNAL_FILE), b"")
        restore_state(output).write(self)


def restore_state(output: str) -> StateFile[RestoreState]:
    """Return the state file of an output directory."""
    return StateFile(
        os.path.join(output, STATE_FILE),
        RestoreState,
        _VERSION,
        "state of a restore",
        "restore to an empty --output, or complete the restore with the version that began it",
    )


@dataclass(frozen=True, slots=True)
class _JournalDigest:
    """The digest of the files of a finished partition; None if the partition was reopened."""

    files: str | None


class Journal:
    """The finished partitions of an output directory."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._path = os.path.join(output, JOURNAL_FILE)

    def finished(self) -> dict[TopicPartition, RestoredPartition]:
        """Return the finished partitions; raise `InputError` if a file of a partition changed."""
        latest_lines = {}
        for line in self._lines():
            restored, files = _decode_journal_line(line, self._path)
            latest_lines[restored.partition] = restored, files
        finished_partitions = {}
        for partition, (restored, files) in latest_lines.items():
            if restored.is_skipped or files is None:
                continue
            directory = os.path.join(self._output, partition.directory_name)
            if _files_digest(directory) != files:
                raise InputError(
                    "a restored partition was changed",
                    path=directory,
                    hint="restore to an empty directory: a broker may have started on this output",
                )
            finished_partitions[partition] = restored
        return finished_partitions

    def add(self, restored: Iterable[RestoredPartition]) -> None:
        """Append the lines of finished partitions, durably."""
        self._append(
            asdict(partition)
            | {
                "files": _files_digest(
                    os.path.join(self._output, partition.partition.directory_name)
                )
            }
            for partition in restored
        )

    def reopen(self, restored: RestoredPartition) -> None:
        """Durably append a line that marks a partition as unfinished."""
        self._append([asdict(restored) | {"files": None}])

    def _append(self, lines: Iterable[Mapping[str, object]]) -> None:
        with (
            publishing(self._path, "write the journal"),
            open(self._path, "a", encoding="utf-8") as file,
        ):
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[Any]:
        try:
            with open(self._path, "r+b") as file:
                data = file.read()
                # Ignore an incomplete last line: the run was killed while it wrote the line.
                complete_bytes = data.rfind(b"\n") + 1
                file.truncate(complete_bytes)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise publish_error(error, self._path, "read the journal") from error
        return list(filter(None, map(_parse_json, data[:complete_bytes].splitlines())))


def _parse_json(line: bytes) -> Any:
    """Return the JSON value of a line; None if the line is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _decode_journal_line(line: Any, path: str) -> tuple[RestoredPartition, str | None]:
    """Return a partition and the digest of its files; None if the partition was reopened."""
    try:
        restored, files = (
            convert_fields(line, RestoredPartition),
            convert_fields(line, _JournalDigest).files,
        )
    except (MsgspecError, TypeError) as error:
        raise InputError(
            f"a line of the journal is malformed: {error}",
            path=path,
            found=repr(line)[:80],
            hint="restore to an empty --output",
        ) from error
    if parse_partition_directory(restored.partition.directory_name) != restored.partition:
        raise InputError(
            "a line of the journal is malformed: invalid partition",
            path=path,
            found=repr(restored.partition)[:80],
            hint="restore to an empty --output",
        )
    return restored, files


def _files_digest(directory: str) -> str:
    """Return a digest of the name, inode, size and modification time of each file."""
    digest = hashlib.sha256()
    try:
        with os.scandir(directory) as entries:
            statuses = sorted((entry.name, entry.stat()) for entry in entries)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise publish_error(error, directory, "list a restored partition") from error
    for name, info in statuses:
        digest.update(f"{name} {info.st_ino} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()


#: Published last, in this order. A broker needs ``meta.properties`` to start, and skips log
#: recovery if the clean shutdown file exists.
_LAST_FILE_NAMES = (META_PROPERTIES, CLEAN_SHUTDOWN)
_COPY_BYTES = 64 << 20
_NO_RANGE_COPIES = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
_PROBE = "probe"


def disable_startup(output: str, properties: Mapping[str, str], broker_epoch: int) -> None:
    """Write ``meta.properties`` and the clean shutdown file under hidden names, durably."""
    startup_files = last_files(output)
    startup_files.hide()
    if properties and not os.path.exists(startup_files.hidden(META_PROPERTIES)):
        text = "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))
        write_durably(startup_files.hidden(META_PROPERTIES), text.encode())
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    write_durably(startup_files.hidden(CLEAN_SHUTDOWN), text.encode())
    sync_directory(output)


def last_files(output: str) -> LastFiles:
    return LastFiles(output, _LAST_FILE_NAMES)


def write_root(plan: RestorePlan, output: str, partitions: Iterable[RestoredPartition]) -> None:
    """Write the checkpoints of the restored partitions to the root directory, durably."""
    restored = [partition for partition in partitions if not partition.is_skipped]
    ends = {partition.partition: partition.log_end_offset for partition in restored}
    log_starts = {
        partition.partition: partition.log_start_offset
        for partition in restored
        if partition.log_start_offset > partition.base_offset
    }
    cleaner_offset_by_partition = {
        partition.partition: partition.cleaned_to for partition in plan.partitions
    }
    cleaner_offsets = {
        partition.partition: offset
        for partition in restored
        if (offset := cleaner_offset_by_partition[partition.partition]) is not None
        and partition.log_start_offset <= offset <= partition.log_end_offset
    }
    for name, offsets in (
        (RECOVERY_POINT_CHECKPOINT, ends),
        (REPLICATION_CHECKPOINT, ends),
        (LOG_START_CHECKPOINT, log_starts),
        (CLEANER_CHECKPOINT, cleaner_offsets),
    ):
        if offsets or name != CLEANER_CHECKPOINT:
            write_durably(os.path.join(output, name), format_offset_checkpoint(offsets).encode())
    sync_directory(output)


def make_directory(path: str) -> None:
    with publishing(path, "create the directory"):
        os.makedirs(path, exist_ok=True)


def write_durably(path: str, data: bytes) -> None:
    """Write a file atomically and durably."""
    with AtomicFile(path) as file:
        file.write(data)
        file.commit()


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    sync([path], "make the directory durable")


def copy_metadata(dump: Dump, target: str) -> None:
    """Copy the metadata log, durably; files that a killed run copied are copied again."""
    source = dump.metadata_logs[0]
    directory = os.path.join(target, METADATA_LOG)
    make_directory(directory)
    for entry in scan_directory(source):
        if not entry.is_directory():
            _copy_metadata_file(entry.path, os.path.join(directory, entry.name))
    sync_directory(directory)
    _copy_root_file(source, target, BOOTSTRAP_CHECKPOINT)


def copy_metadata_identity(dump: Dump, target: str) -> None:
    """Copy the ``meta.properties`` of a separate metadata log directory, durably."""
    _copy_root_file(dump.metadata_logs[0], target, META_PROPERTIES)


def _copy_root_file(metadata_log: str, target: str, name: str) -> None:
    for entry in scan_directory(os.path.dirname(metadata_log)):
        if entry.name == name:
            _copy_metadata_file(entry.path, os.path.join(target, name))
    sync_directory(target)


def _copy_metadata_file(path: str, target: str) -> None:
    refuse_linked_out(path, any_name=True)
    with closing(open_log(path)) as source, AtomicFile(target) as file:
        for chunk in source.stream():
            file.write(chunk.data)
        file.commit()


def choose_link(link: Link, sample: SegmentFile, staging: str) -> Link:
    """Return the link mode that works between input and output, after a trial with one log."""
    if link is Link.COPY:
        return link
    probe = os.path.join(staging, _PROBE)
    try:
        if not store_of(sample.log_path).has_links:
            is_supported = False
        elif link is Link.HARD:
            is_supported = _link_log(sample.log_path, probe)
        else:
            is_supported = _clone_log(sample.log_path, probe)
    finally:
        _remove_file(probe)
    if is_supported:
        return Link.HARD if link is Link.HARD else Link.REFLINK
    if link is Link.AUTO:
        return Link.COPY
    raise InputError(
        f"the logs of the input cannot be restored with --link {link}",
        path=sample.log_path,
        expected="input and output on one file system"
        + (" with support for clones (XFS, btrfs)" if link is Link.REFLINK else ""),
        hint="use --link auto or --link copy",
    )


def copy_or_link(segment: SegmentFile, target: str, link: Link) -> None:
    """Copy, clone or link the log of a segment; keep the modification time of a local log."""
    _remove_file(target)
    is_rolled = not segment.is_last and segment.log_path.endswith(LOG_SUFFIX)
    with closing(_open_listed_log(segment)) as source:
        is_linked = link is Link.HARD and is_rolled and _link_log(segment.log_path, target)
        if is_linked or (link is Link.REFLINK and _clone_log(segment.log_path, target)):
            pass
        elif store_of(segment.log_path).needs_requests:
            write_log(target, source.stream())
        else:
            _copy_log(segment.log_path, target, segment.log_size_bytes)
        change = None if segment.log_version else source.changed()
        if change is not None:
            raise log_changed(segment.log_path, change)
    # A hard link is the file of the dump itself: leave its modification time alone.
    if not is_linked and not store_of(segment.log_path).needs_requests:
        _set_mtime(target, segment.log_mtime_ns)


def _open_listed_log(segment: SegmentFile) -> ByteSource:
    """Open a log; if it was removed after the listing, raise the error for a changing dump."""
    path = segment.log_path
    try:
        return open_log(path, segment)
    except InputError:
        if store_of(path).needs_requests or os.path.lexists(path):
            raise
        raise log_changed(path, "removed after the listing") from None


def replace_link_by_copy(path: str) -> None:
    """If a log of the output is a link to a log of the dump, replace the link by a copy."""
    if _is_only_link(os.lstat(path)):
        return
    copy_path = f"{path}.copy"
    status = os.stat(path)
    _copy_log(path, copy_path, status.st_size)
    _set_mtime(copy_path, status.st_mtime_ns)
    with publishing(path, "replace a link"):
        os.replace(copy_path, path)


def truncate_log(path: str, size_bytes: int) -> None:
    """Truncate a log of the output; first replace a link to the dump by a copy."""
    replace_link_by_copy(path)
    mtime_ns = os.stat(path).st_mtime_ns
    with (
        publishing(path, "truncate the copy of a log"),
        open(path, "r+b", opener=_open_unlinked) as file,
    ):
        file.truncate(size_bytes)
    _set_mtime(path, mtime_ns)


def _is_only_link(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def _open_unlinked(path: str, flags: int) -> int:
    """Open a log for writing, but not through a link, which may point into the dump."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW)
    if not _is_only_link(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EMLINK, "the file has another hard link", path)
    return descriptor


def _link_log(source: str, target: str) -> bool:
    with publishing(target, "link a log"):
        try:
            # os.link does not follow a symbolic link.
            os.link(os.path.realpath(source), target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
    return True


def _clone_log(source: str, target: str) -> bool:
    with publishing(target, "clone a log"):
        return clone_file(source, target)


def _copy_log(source: str, target: str, size_bytes: int) -> None:
    with (
        publishing(target, "copy a log"),
        open(source, "rb") as source_file,
        open(target, "wb") as target_file,
    ):
        copied_bytes = 0
        while copied_bytes < size_bytes:
            chunk_bytes = min(_COPY_BYTES, size_bytes - copied_bytes)
            moved_bytes = _copy_range(
                source_file.fileno(), target_file.fileno(), chunk_bytes, copied_bytes
            )
            if moved_bytes == 0:
                break
            copied_bytes += moved_bytes


def _copy_range(
    source_descriptor: int, target_descriptor: int, size_bytes: int, offset: int
) -> int:
    try:
        return os.copy_file_range(source_descriptor, target_descriptor, size_bytes, offset, offset)
    except OSError as error:
        if error.errno not in _NO_RANGE_COPIES:
            raise
    os.lseek(target_descriptor, offset, os.SEEK_SET)
    return os.sendfile(target_descriptor, source_descriptor, offset, size_bytes)


def write_log(target: str, chunks: Iterable[Bytes]) -> None:
    with publishing(target, "copy a log"), open(target, "wb") as file:
        file.writelines(chunk.data for chunk in chunks)


def _set_mtime(path: str, mtime_ns: int) -> None:
    # Retention uses the modification time of segments without timestamps.
    with publishing(path, "set the modification time"):
        os.utime(path, ns=(mtime_ns, mtime_ns))


def _remove_file(path: str) -> None:
    with publishing(path, "replace a file"), suppress(FileNotFoundError):
        os.unlink(path)


def write_partition_metadata(directory: str, topic_id: str) -> None:
    path = os.path.join(directory, PARTITION_METADATA)
    with (
        publishing(path, "write the partition metadata"),
        open(path, "w", encoding="ascii", newline="") as file,
    ):
        file.write(f"version: 0\ntopic_id: {topic_id}")


def remove_build_files(directory: str) -> None:
    """Remove the hidden files of a build from a partition."""
    with publishing(directory, "remove a temporary file of the build"):
        for name in os.listdir(directory):
            if name.startswith("."):
                os.unlink(os.path.join(directory, name))
