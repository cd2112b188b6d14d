"""The recorded results of all suites, and the document that shows them."""

from __future__ import annotations

from conformance import run_suite, table
from conformance.compare import (
    known_differences,
)
from conformance.suites import load_suites


def test_every_known_difference_names_a_suite_and_has_a_reason() -> None:
    suites = load_suites()
    for difference in known_differences(run_suite.DIFFERENCES):
        name = difference.test.removeprefix(run_suite.ENGINES.prefix)
        suite, _, test = name.partition("/")
        assert suite in suites
        assert "::" in test
        assert difference.reason


def test_the_document_shows_the_recorded_results() -> None:
    results = table.load_results()
    assert table.table_of_the_document() == table.rendered(results)
    for record in results:
        assert record["parts"].keys() <= load_suites()[record["suite"]].parts.keys()


def test_every_recorded_difference_has_a_reason() -> None:
    results = table.load_results()
    assert {record["suite"] for record in results} >= {"jax", "equinox", "flax", "orbax", "keras"}
    engines = table.load_results(run_suite.ENGINES.folder)
    assert {record["suite"] for record in engines} == {"engines/jax"}
    for record in (*results, *engines):
        for name, part in record["parts"].items():
            assert part["unexplained"] == {}, (record["suite"], name)
            assert part["broken"] == {}, (record["suite"], name)
            assert part["proxy_end"] == "", (record["suite"], name)
