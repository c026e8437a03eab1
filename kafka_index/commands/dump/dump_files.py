"""Identify the files to dump, and reject options that do not apply to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from kafka_index.commands.dump.logs import dump_directory, dump_log, dump_records
from kafka_index.commands.dump.request import DumpRequest
from kafka_index.commands.dump.result import DumpResult
from kafka_index.commands.dump.rows import DumpedFile, SelectedRows, Selection
from kafka_index.commands.dump.state_files import (
    PROPERTY_FILES,
    dump_leader_epochs,
    dump_offset_checkpoint,
    dump_properties,
    dump_snapshot,
    dump_sparse_index,
    dump_transaction_index,
)
from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_CHECKPOINTS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.core.fs.paths import expand_stored
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.records.decompression import shared_budget

_Dump = Callable[[DumpedFile, SelectedRows], KafkaIndexError | None]
_KINDS: dict[str, _Dump] = {
    OFFSET_INDEX_SUFFIX: dump_sparse_index,
    TIME_INDEX_SUFFIX: dump_sparse_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
    **dict.fromkeys(OFFSET_CHECKPOINTS, dump_offset_checkpoint),
    **dict.fromkeys(PROPERTY_FILES, dump_properties),
}
# File kinds whose rows can be selected by offset and by time.
_WITH_OFFSETS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_WITH_TIMES = (LOG_SUFFIX, TIME_INDEX_SUFFIX)


def dump_files(
    request: DumpRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> DumpResult:
    """Identify the files and directories of a request; the result prints them.

    Raises `InputError` or `ArgumentError` if one does not exist, is of an unknown kind, or lacks
    the fields of a selection.
    """
    verify_crc = request.verify_crc
    log: _Dump = partial(dump_log, verify_crc=verify_crc)
    if request.records:
        budget = shared_budget(request.max_decompressed_bytes)
        log = partial(dump_records, verify_crc=verify_crc, budget=budget)
    kinds: Mapping[str, _Dump] = {LOG_SUFFIX: log, **_KINDS}
    directories = [path for path in request.files if os.path.isdir(path)]
    files = _known_files([path for path in request.files if path not in directories], kinds)
    selection = Selection.of_request(request)
    if directories and (request.records or selection != Selection(limit=selection.limit)):
        request.refuse(
            "{records}, {offset}, {from_time}, {to_time} and {at_time} require files, not a "
            "directory"
        )
    for file in files:
        _refuse_without_rows(request, selection, file)
    dumps: list[tuple[str, Callable[[SelectedRows], Iterable[KafkaIndexError]]]] = [
        *((path, partial(dump_directory, path, verify_crc=verify_crc)) for path in directories),
        *((file.path, partial(_dump_file, kinds[file.kind], file)) for file in files),
    ]
    return DumpResult(dumps, selection, follows_links=request.follow_links)


def _dump_file(dump: _Dump, file: DumpedFile, output: SelectedRows) -> list[KafkaIndexError]:
    """Print a file; return its errors."""
    try:
        fault = dump(file, output)
        output.end()
    except KafkaIndexError as error:
        fault = error
    return [] if fault is None else [fault]


def _refuse_without_rows(request: DumpRequest, selection: Selection, file: DumpedFile) -> None:
    """Reject a selection by fields that a file does not have."""
    if request.records and file.kind != LOG_SUFFIX:
        request.refuse("{records} requires a .log", path=file.path)
    if request.offset is not None and file.kind not in _WITH_OFFSETS:
        request.refuse(f"{{offset}} requires {', '.join(_WITH_OFFSETS)}", path=file.path)
    if selection.has_times and file.kind not in _WITH_TIMES:
        kinds = ", ".join(_WITH_TIMES)
        request.refuse(
            f"{{from_time}}, {{to_time}} and {{at_time}} require {kinds}", path=file.path
        )


def _known_files(given: Iterable[str], kinds: Collection[str]) -> list[DumpedFile]:
    """Return the files to dump; reject unknown ones.

    A glob of a URI is expanded to files of a known kind, as the shell does for paths. `kinds` are
    suffixes and names. Raises `InputError` if a file does not exist, is not a file, or is of
    another kind.
    """
    files: list[DumpedFile] = []
    for path in given:
        matches = expand_stored(path)
        known = [file for match in matches if (file := _known(match, kinds)) is not None]
        if not store_of(matches[0]).needs_requests and not os.path.lexists(matches[0]):
            raise InputError("no such file", path=path)
        if not known:
            raise _unknown_kind(matches[0], kinds)
        if len(matches) == 1 and not known[0].exists:
            raise InputError("not a file", path=path)
        files += known
    return files


def _known(path: str, kinds: Collection[str]) -> DumpedFile | None:
    name = os.path.basename(path)
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind in kinds:
        return DumpedFile(path, parsed.base_offset, parsed.kind)
    if name in kinds:
        return DumpedFile(path, 0, name)
    return None


def _unknown_kind(path: str, kinds: Collection[str]) -> InputError:
    suffixes = ", ".join(kind for kind in kinds if kind.startswith("."))
    names = ", ".join(kind for kind in kinds if not kind.startswith("."))
    return InputError(
        "not a kind of file that can be dumped",
        path=path,
        expected=f"20 digits and one of {suffixes}; or {names}",
        found=os.path.basename(path) or "a folder",
    )
