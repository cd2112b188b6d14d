"""Programs that some releases of JAX get wrong: the document, and what the last run found."""

from __future__ import annotations

from conformance import faults
from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES


def test_the_table_is_that_of_the_last_run() -> None:
    assert faults.TABLE.read() == faults.rendered(faults.kept())


def test_faulty_releases_are_right_with_the_flag_and_on_proxies() -> None:
    outcomes = {outcome.release: outcome for outcome in faults.load()}
    assert {*FAULTY_RELEASES, "0.10.1", "0.11.2", "0.12.0.1"} <= outcomes.keys()
    for outcome in outcomes.values():
        assert outcome.is_as_promised(), outcome
    assert outcomes["0.10.2"].here["sums_of_many_rows"] == "wrong"
