"""The integers of Kafka's files: their limits, and arrays of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The largest relative offset, position, file size and sequence number.
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

#: Columns of offsets, positions and timestamps.
Longs = NDArray[np.int64]
