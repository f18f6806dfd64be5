"""One attacker of each kind keeps ordinary callers from few replies. `make test-fairness` also
compares how long the calls take."""

from __future__ import annotations

import sys

import pytest
from fairness.attackers import ATTACKS
from fairness.callers import CALLERS, attacked, measure, served


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
@pytest.mark.parametrize("place", ATTACKS)
def test_attackers_keep_no_caller_from_its_replies(place: str, engine: str) -> None:
    with served(place, engine) as port:
        assert measure(port, 2).failures == []
        with attacked(place, port):
            outcome = measure(port, None, 1)
        assert outcome.share >= 0.99, outcome.failures[:5]
        # All attackers have gone.
        assert len(measure(port, 2).seconds) == 2 * CALLERS
