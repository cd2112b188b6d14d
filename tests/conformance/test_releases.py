"""docs/compatibility.md says what was measured, and what is measured is what connect() allows."""

from __future__ import annotations

import itertools
import re

import pytest

from conformance import releases
from harness import history
from harness.figures import pages
from harness.processes import REPOSITORY
from shared_pathways_service.api.jax_releases import check_pair, client_serdes
from shared_pathways_service.errors import VersionSkew

#: Those that `scripts/compat` runs.
RELEASES = re.findall(
    r"^releases=\((.*)\)$", (REPOSITORY / "scripts" / "compat").read_text(), re.MULTILINE
)[0].split()


def test_the_table_is_that_of_the_last_run() -> None:
    assert releases.TABLE.read() == releases.rendered(*releases.load(), pages.written_at())


def test_old_results_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {**releases.load()[1], "changed": True}
    monkeypatch.setattr(history, "age", lambda *_: pages.OLD + 1)
    *_, origin = releases.rendered([], run, "HEAD").split("\n\n")
    text = " ".join(origin.split())
    assert "**older than 200 commits of what it measures**" in text
    assert f"at commit {run['commit'][:10]}, **with files that differ from it**" in text


def test_all_pairs_ran_and_passed_or_are_refused() -> None:
    outcomes = {(o.client, o.service): o for o in releases.load()[0]}
    assert set(outcomes) == set(itertools.product(RELEASES, repeat=2))
    for pair, outcome in outcomes.items():
        assert not outcome.failed, pair
        if outcome.refused:
            with pytest.raises(VersionSkew):
                check_pair(*pair, "the service", ours=True)
        else:
            assert outcome.passed > 30, pair
            assert check_pair(*pair, "the service", ours=True) == ""


def test_the_short_form_has_every_release_with_itself_and_the_last_one() -> None:
    """But for the one that `scripts/test` runs on: with itself."""
    main = releases.MAIN_RELEASE
    expected = {("1", "1"), ("1", main), (main, "1"), ("2", "2"), ("2", main), (main, "2")}
    assert set(releases.pairs(["1", "2", main], short=True)) == expected
    assert releases.pairs(["1"], short=True) == [("1", "1")]


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
