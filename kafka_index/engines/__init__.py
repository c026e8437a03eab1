"""What runs a build or a lookup: threads of this process, or a Spark session made here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Engine:
    """The chosen engine; nothing is started before the work.

    Parameters
    ----------
    on_spark : bool
        Whether Spark runs the work, otherwise threads of this process.
    master : str, optional
        Spark master; without it that of ``spark-submit``, else this machine's cores.
    threads : int
        Number of threads of this process.
    """

    on_spark: bool
    master: str | None
    threads: int


class Listener(Protocol):
    """Follows any engine at work."""

    def on_begin(self) -> None:
        """Record that the engine has started and the work begins."""

    def on_share(self, done: int, total: int) -> None:
        """Show how many of the equal shares of the work are done; called from any thread."""
