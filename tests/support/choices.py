"""Small decisions read off drawn bytes.

A drawn segment takes one short string of bytes for each of its entries instead of a draw for each
decision in it: that is many times cheaper, and hypothesis still shrinks it, because zero is always
the simplest choice and an entry can be left out without changing the meaning of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

#: As many as the most complicated entry takes.
SPEC_BYTES = 24


class Choices:
    """Decisions read from a string of bytes; after its end each is the simplest.

    `spec`: the bytes.
    """

    __slots__ = ("_at", "_spec")

    def __init__(self, spec: bytes) -> None:
        self._spec = spec
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        size = ((limit - 1).bit_length() + 7) // 8
        part = self._spec[self._at : self._at + size]
        self._at += size
        return int.from_bytes(part, "big") % limit

    def between(self, least: int, most: int) -> int:
        """A number from `least`, the simplest, to `most`."""
        return least + self.below(most - least + 1)

    def once_in(self, times: int) -> bool:
        """True with this chance; False is simpler."""
        return self.below(times) == times - 1

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, the first being the simplest."""
        return options[self.below(len(options))]

    def some_bytes(self, most: int) -> bytes:
        """Up to so many bytes; zeros when the specification ends."""
        size = self.below(most + 1)
        part = self._spec[self._at : self._at + size]
        self._at += size
        return part + bytes(size - len(part))
