"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: the first call of a kernel compiles it, and shared machines stall. In CI the same
# examples are drawn each time, so that a failure there is a failure here.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
