"""Files in and files out: byte sources, listing a dump, publishing, locks."""

from kafka_index.storage.listing import Listing, list_dump
from kafka_index.storage.local_work import workspace
from kafka_index.storage.locks import DirectoryLock, StoreLock, lock_of_output
from kafka_index.storage.partition_files import SegmentFile
from kafka_index.storage.paths import (
    check_target,
    expand_directories,
    expand_input,
    local_path,
    prepare_target_directory,
    refuse_overlap,
    target_directory,
)
from kafka_index.storage.publish import (
    Publication,
    StagedFile,
    left_to_publish,
    publish_group,
)
from kafka_index.storage.scratch import (
    create_scratch,
    is_scratch,
    remove_scratch,
    scratch_path,
    sweep,
    swept_target,
    write_scratch,
)
from kafka_index.storage.window import WINDOW_BYTES, StreamWalk, WindowWalk
from kafka_index.stores import Bytes, ByteSource
from kafka_index.stores.durable_files import AtomicFile, make_durable, publish_error, publishing
from kafka_index.stores.inputs import Skipped
from kafka_index.stores.local_store import MappedFile

__all__ = [
    "WINDOW_BYTES",
    "AtomicFile",
    "ByteSource",
    "Bytes",
    "DirectoryLock",
    "Listing",
    "MappedFile",
    "Publication",
    "SegmentFile",
    "Skipped",
    "StagedFile",
    "StoreLock",
    "StreamWalk",
    "WindowWalk",
    "check_target",
    "create_scratch",
    "expand_directories",
    "expand_input",
    "is_scratch",
    "left_to_publish",
    "list_dump",
    "local_path",
    "lock_of_output",
    "make_durable",
    "prepare_target_directory",
    "publish_error",
    "publish_group",
    "publishing",
    "refuse_overlap",
    "remove_scratch",
    "scratch_path",
    "sweep",
    "swept_target",
    "target_directory",
    "workspace",
    "write_scratch",
]
