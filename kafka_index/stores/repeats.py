"""Requests that are made again: the library does not repeat what it cannot know to be safe.

It repeats after answers of 5xx, and what could not be sent. A connection that breaks while an
answer is read, or in a PUT or POST, ends a request at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kafka_index.stores.object_errors import LIBRARY_ERRORS, is_worth_repeating

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2
_Answer = TypeVar("_Answer")


def repeated(request: Callable[[], _Answer]) -> _Answer:
    """Return the answer of a request, made again where the library gives up at once.

    The request is idempotent: every request of ours is. Raises the library's exceptions.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return request()
        except LIBRARY_ERRORS as error:
            if not is_worth_repeating(error):
                raise
            time.sleep(_FIRST_WAIT_SECONDS * 2**attempt)
    return request()
