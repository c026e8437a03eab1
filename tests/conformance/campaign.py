"""The number of random cases that a run draws, and their seed.

``KAFKA_INDEX_CASES`` is the number of random segments (``make conformance CASES=n``; 1,000 unless
given); tests of whole partitions draw a share of it. ``KAFKA_INDEX_SEED`` (``SEED=n``) makes a run
draw what another one drew. Without it each run draws something else, but under ``CI`` always the
same. The seed is in the header of the run: this module is a plugin of pytest for that.
"""

from __future__ import annotations

import os
import secrets
import zlib
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, seed, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    T = TypeVar("T", bound=Callable[..., None])

CASES = int(os.environ.get("KAFKA_INDEX_CASES") or 1000)
_CI_SEED = 0


def _seed() -> int:
    given = os.environ.get("KAFKA_INDEX_SEED")
    if not given:
        given = str(_CI_SEED if os.environ.get("CI") else secrets.randbelow(2**32))
        # The plugin and the tests may be two imports of this module: both go by the same seed.
        os.environ["KAFKA_INDEX_SEED"] = given
    return int(given)


SEED = _seed()


def random_cases(share: float) -> Callable[[T], T]:
    """Let hypothesis run a test on this share of `CASES`, from the run's seed."""

    def decorate(test: T) -> T:
        # Examples of former runs are not generated again: what a run draws is all in its seed.
        run = settings(
            max_examples=max(round(CASES * share), 1),
            derandomize=False,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        return seed(SEED ^ zlib.crc32(test.__name__.encode()))(run(test))

    return decorate


def pytest_report_header() -> str:
    """The line with which the same run can be had again."""
    return f"random conformance: make conformance CASES={CASES} SEED={SEED}"
