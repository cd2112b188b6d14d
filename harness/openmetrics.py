"""The official parser of OpenMetrics text, and the page that says what each metric is."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.protocol.auth import bearer

__all__ = ["check_documented", "scrape", "text_to_families", "value"]

_UNITS = ("seconds", "bytes")


def text_to_families(text: str) -> list[Metric]:
    """Parses the text; raises ValueError if it is not well-formed."""
    found: list[Metric] = list(parser.text_string_to_metric_families(text))
    return found


def scrape(url: str, token: str | None = None) -> dict[str, Metric]:
    """Returns the served families by name."""
    headers = {name.title(): value for name, value in bearer(token)}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return {family.name: family for family in text_to_families(answer.read().decode())}


def value(families: dict[str, Metric], name: str, /, **labels: str) -> float:
    """Returns the one sample of a name that has these labels."""
    [found] = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(found)


def check_documented(families: Iterable[Metric], prefix: str) -> None:
    """Asserts that docs/metrics.md has each family with its kind, unit and labels, and no other.

    Args:
      families: The served families.
      prefix: Of the names that are compared.
    """
    text = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*?) ?\| ([^|]*?) ?\|", text, re.MULTILINE)
    rows = {name: rest for name, *rest in lines if name.startswith(prefix)}
    served = {family.name: family for family in families}
    assert rows.keys() == served.keys()
    for name, (kind, unit, labels) in rows.items():
        family = served[name]
        assert family.type == kind, name
        of_name = name.rpartition("_")[2]
        assert family.unit == (of_name if of_name in _UNITS else ""), name
        assert (unit if unit in _UNITS else "") == family.unit, name
        used = {label for sample in family.samples for label in sample.labels}
        assert used == set(re.findall(r"`(\w+)`", labels)), name
