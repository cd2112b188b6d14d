"""The recorded results of all suites, and the document that shows them."""

from __future__ import annotations

import pytest

from conformance import run_suite, table
from conformance.compare import DIFFERENCES, explain, known_differences
from conformance.suites import load_suites
from harness import history

#: Commits that may change what the suites measure before the page is to be written again.
COMMITS = 200


def test_every_known_difference_names_a_suite_and_has_a_reason() -> None:
    suites = load_suites()
    for difference in known_differences(DIFFERENCES):
        name = difference.test.removeprefix(run_suite.ENGINES.prefix)
        suite, _, test = name.partition("/")
        assert suite in suites
        assert "::" in test
        assert difference.reason


def test_the_document_shows_the_recorded_results() -> None:
    results = table.load_results()
    for record in results:
        assert record["parts"].keys() <= load_suites()[record["suite"]].parts.keys()
    if history.head() is None:
        pytest.skip("without git the page's commit is not known")
    commit = table.written_at()
    assert history.resolve(commit), "scripts/conformance --table writes the page at a known commit"
    assert table.TABLES.read() == table.rendered(results, commit)
    age = history.age(commit, table.MEASURED)
    assert age is not None
    assert age < COMMITS, "scripts/conformance --table"


def test_the_document_shows_what_is_selected() -> None:
    shown = table.TABLES.read()
    for suite in load_suites().values():
        for part, arguments in suite.parts.items():
            [row] = [
                line
                for line in shown.splitlines()
                if line.startswith(f"| {suite.name} | ")
                and f" | {part} | " in line
                and suite.ref[:12] in line
            ]
            for argument in arguments:
                assert table.shown_argument(argument) in row
    assert shown.count("`JAX_NUM_GENERATED_CASES=3`") == 20


def test_tests_that_failed_first_do_not_count_as_passed() -> None:
    for record in (*table.load_results(), *table.load_results(table.ENGINES)):
        for name, part in record["parts"].items():
            differ = part["passed_alone"].keys() | part["failed"].keys()
            assert part["proxy"] == part["direct"] - len(differ), (record["suite"], name)


def test_every_recorded_difference_has_a_reason() -> None:
    known = known_differences(DIFFERENCES)
    results = table.load_results()
    assert {record["suite"] for record in results} >= {"jax", "equinox", "flax", "orbax", "keras"}
    engines = table.load_results(table.ENGINES)
    assert {record["suite"] for record in engines} == {"engines/jax"}
    unexplained = 0
    for record in (*results, *engines):
        for name, part in record["parts"].items():
            _, left = explain(record["suite"], part["failed"], known)
            unexplained += len(left)
            assert left == {} or "provenance" not in part, (record["suite"], name)
            assert part["broken"] == {}, (record["suite"], name)
            assert part["proxy_end"] == "", (record["suite"], name)
    # Of parts that ran before their commit was recorded. This number may only shrink.
    assert unexplained <= 154
