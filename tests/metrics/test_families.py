"""Numbers as OpenMetrics text: the official parser reads back what was written."""

from __future__ import annotations

import pytest

from harness.openmetrics import text_to_families
from shared_pathways_service.metrics.exposition import render
from shared_pathways_service.metrics.families import (
    Family,
    Histogram,
    Sample,
    labelled,
    values_of,
)

AWKWARD = 'back\\slash "quoted"\nline'
FAMILIES = [
    Family("a", "info", "What runs.", [Sample(1, {"version": "1.2"})]),
    Family(
        "a_requests",
        "counter",
        "Requests.",
        [Sample(3, {"kind": "compile"}), Sample(2**53, {"kind": AWKWARD})],
    ),
    Family("a_busy_seconds", "counter", AWKWARD, [Sample(0.1 + 0.2)], "seconds"),
    Family("a_held_bytes", "gauge", "Held.", [Sample(1.5e300)], "bytes"),
    Family("a_nothing", "counter", "No samples yet.", []),
]


def test_the_official_parser_reads_what_was_written() -> None:
    found = text_to_families(render(FAMILIES))
    assert [(f.name, f.type, f.unit, f.documentation) for f in found] == [
        (f.name, f.kind, f.unit, f.help) for f in FAMILIES
    ]
    for family, parsed in zip(FAMILIES, found, strict=True):
        assert [(s.name, s.labels, s.value) for s in parsed.samples] == [
            (family.sample_name, s.labels, s.value) for s in family.samples
        ]


def test_several_sources_are_one_family_each() -> None:
    merged = labelled({"ada": FAMILIES, "bob": FAMILIES[1:]}, "connection")
    found = {family.name: family for family in text_to_families(render(merged))}
    assert sorted(found) == sorted(family.name for family in FAMILIES)
    requests = [(s.labels["connection"], s.labels["kind"]) for s in found["a_requests"].samples]
    assert requests == [
        ("ada", "compile"),
        ("ada", AWKWARD),
        ("bob", "compile"),
        ("bob", AWKWARD),
    ]
    assert [s.labels["connection"] for s in found["a"].samples] == ["ada"]


def test_nothing_at_all_is_well_formed() -> None:
    assert text_to_families(render([])) == []


def test_values_for_json() -> None:
    assert values_of(FAMILIES) == {
        "a_info": {"version": "1.2"},
        "a_requests_total": {"compile": 3, AWKWARD: 2**53},
        "a_busy_seconds_total": 0.1 + 0.2,
        "a_held_bytes": 1.5e300,
        "a_nothing_total": {},
    }


def test_a_unit_ends_the_name() -> None:
    with pytest.raises(ValueError, match="does not end with its unit"):
        Family("a_seconds_busy", "counter", "", [], "seconds")


def test_a_histogram_counts_values_below_each_bound() -> None:
    histogram = Histogram([0.1, 1.0])
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    family = Family("a_seconds", "histogram", "Lasts.", histogram.samples(), "seconds")
    (found,) = text_to_families(render([family]))
    assert [(s.name, s.labels, s.value) for s in found.samples] == [
        ("a_seconds_bucket", {"le": "0.1"}, 2),
        ("a_seconds_bucket", {"le": "1.0"}, 3),
        ("a_seconds_bucket", {"le": "+Inf"}, 4),
        ("a_seconds_count", {}, 4),
        ("a_seconds_sum", {}, pytest.approx(7.65)),
    ]
