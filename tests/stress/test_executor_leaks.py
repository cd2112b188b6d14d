"""The short form of `stress.executor_leaks`."""

from __future__ import annotations

import pytest

from stress.executor_leaks import grown, run
from stress.growth import Held

# (A fork server would be one more process of a role.)
pytestmark = [pytest.mark.heavy, pytest.mark.race, pytest.mark.real_starts]

#: The allowed growth: descriptors that each loss leaves exceed it, or three threads. (The proxy's
#: vary by two dozen, with gRPC's and those of transfers; JAX and gRPC still start some.)
_ALLOWED = Held(threads=40, descriptors=4, resident_mb=48.0)


def test_losses_of_executors_leave_nothing() -> None:
    laps = run(20, 400, 10, lambda _lap: None)
    assert (laps[-1].losses, laps[-1].programs) == (20, 400)
    assert {"client", "agent", "supervisor", "rm", "worker 0", "proxy"} <= laps[0].held.keys()
    leaks = {name: of for name, of in grown(laps, _ALLOWED).items() if not of.flat}
    assert not leaks, laps


def test_odd_numbers_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="7 losses are no multiple of 2 laps"):
        run(7, 70, 2, lambda _lap: None)
    with pytest.raises(ValueError, match="4 laps tell no growth: at least 5 are needed"):
        run(8, 80, 4, lambda _lap: None)
