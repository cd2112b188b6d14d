"""Programs that some releases of JAX get wrong: the document, and what the last run found."""

from __future__ import annotations

import pytest

from conformance import faults
from harness import history
from harness.figures import pages
from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES


def test_the_table_is_that_of_the_last_run() -> None:
    assert faults.TABLE.read() == faults.rendered(faults.kept(), pages.written_at())


def test_old_results_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "age", lambda *_: pages.OLD + 1)
    rows = faults.rendered(faults.kept(), "HEAD").splitlines()[2:]
    assert rows
    assert all("**older than 200 commits of what it measures**" in row for row in rows)


def test_faulty_releases_are_right_with_the_flag_and_on_proxies() -> None:
    outcomes = {outcome.release: outcome for outcome in faults.load()}
    assert {*FAULTY_RELEASES, "0.10.1", "0.11.2", "0.12.0.1"} <= outcomes.keys()
    for outcome in outcomes.values():
        assert outcome.is_as_promised(), outcome
    assert outcomes["0.10.2"].here["sums_of_many_rows"] == "wrong"
