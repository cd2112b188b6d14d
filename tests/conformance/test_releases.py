"""docs/compatibility.md says what was measured, and what is measured is what connect() allows."""

from __future__ import annotations

import itertools

import pytest

from conformance import releases
from shared_pathways_service.api.jax_releases import check_pair, client_serdes
from shared_pathways_service.errors import VersionSkew


def test_the_table_is_that_of_the_last_run() -> None:
    assert releases.TABLE.read() == releases.rendered(releases.load())


def test_all_pairs_ran_and_passed_or_are_refused() -> None:
    outcomes = {(o.client, o.service): o for o in releases.load()}
    clients = {client for client, _ in outcomes}
    assert {release.rpartition(".")[0] for release in clients} >= {"0.9", "0.10", "0.11"}
    assert "0.12.0.1" in clients
    assert set(outcomes) == set(itertools.product(clients, repeat=2))
    for pair, outcome in outcomes.items():
        assert not outcome.failed, pair
        if outcome.refused:
            with pytest.raises(VersionSkew):
                check_pair(*pair, "the service", ours=True)
        else:
            assert outcome.passed > 30, pair
            assert check_pair(*pair, "the service", ours=True) == ""


def test_the_table_of_versions() -> None:
    rows = [
        row.split("|")[1:3] for row in releases.TABLE.path.read_text().splitlines() if "| 0." in row
    ]
    told = {
        name.strip(): versions.strip()
        for name, versions in rows
        if " to " in versions or versions.strip().isdigit()
    }
    assert len(told) == 7
    for release, versions in told.items():
        low, _, high = versions.partition(" to ")
        version = release if release.count(".") == 2 else f"{release}.0"
        assert client_serdes(version) == (int(low), int(high or low))
