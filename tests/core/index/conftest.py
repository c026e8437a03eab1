"""Whatever takes `kind` runs for both kinds of index."""

from __future__ import annotations

import pytest

from tests.support.index_models import OFFSET, TIME, Kind


@pytest.fixture(params=[OFFSET, TIME], ids=lambda kind: str(kind.name))
def kind(request: pytest.FixtureRequest) -> Kind:
    """One kind after the other."""
    one: Kind = request.param
    return one
