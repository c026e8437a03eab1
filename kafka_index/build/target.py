"""The target of a run: checked, locked and swept, whoever builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from kafka_index.storage import (
    DirectoryLock,
    Listing,
    check_target,
    lock_of_output,
    swept_target,
)
from kafka_index.stores import is_remote


@contextmanager
def held_target(
    output: str | None, listing: Listing, inputs: Sequence[str], *, run_id: str
) -> Iterator[str | None]:
    """Hold the target of a build of logs, and yield its root; None beside the logs.

    The inputs are the paths, globs and URIs of the listing. Raises `InputError` if the output
    overlaps the input, and `PublishError` if it cannot be made, locked or written.
    """
    with ExitStack() as stack:
        if output is None:
            root = None
            stack.enter_context(DirectoryLock.of_data_directories(listing.data_directories))
        else:
            # A link inside a local data directory leads out of it.
            local = [each for each in listing.partition_directories if not is_remote(each)]
            root = check_target(output, [*inputs, *local])
            stack.enter_context(lock_of_output(root, run_id))
        directories = listing.partition_directories
        stack.enter_context(swept_target(root, directories, run_id=run_id))
        yield root
