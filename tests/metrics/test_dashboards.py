"""Grafana's dashboards and Prometheus' alerts, apart from the servers.

That servers expose the metrics and labels of the queries is tested where servers are scraped:
`harness.promql.check_queries`.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from prometheus_client import Metric

from harness.processes import REPOSITORY
from harness.promql import Use, check_queries, dashboards, queries, rules, uses

_SERVERS = ("sps_rm", "sps_proxy", "sps_agent")


def test_queries_are_promql_of_known_servers() -> None:
    used = {name for query in queries() for use in uses(query.text) for name in use.metrics}
    assert {name for name in used if not name.startswith(_SERVERS)} == {"up"}
    for prefix in _SERVERS:
        assert any(name.startswith(prefix) for name in used), prefix
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        uses("sum(sps_rm_slices")


def test_the_labels_of_a_query_are_found() -> None:
    found = uses('sum by (a) (rate(x{b=~"c|d", e="$f"}[5m])) / on (a, g) group_left () (y > 0)')
    [x, y] = [frozenset({name}) for name in "xy"]
    assert found == [
        Use({"b": ("c", "d"), "e": ()}, x), Use({"a": ()}, x), Use({"a": (), "g": ()}, x),
        Use({}, y), Use({"a": (), "g": ()}, y),
    ]  # fmt: skip


def test_what_is_not_served_is_found() -> None:
    slices = Metric("sps_rm_slices", "", "gauge")
    with pytest.raises(AssertionError, match="sps_agent_tunnel_sent_bytes_total"):
        check_queries([slices], "sps_agent_tunnel")
    slices.add_sample("sps_rm_slices", {"state": "gone"}, 0)
    for missing in ("state=lost", "label instance_type"):
        with pytest.raises(AssertionError, match=f"have no {missing}"):
            check_queries([slices], "sps_none")
        slices.add_sample("sps_rm_slices", {"state": "lost"}, 0)


def test_alerts_say_what_happened_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    documented = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{rule['alert']}`" in documented
        for used in re.findall(r'up{job="([^"]+)"}', rule["expr"]):
            assert f"job_name: {used}" in documented


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_a_dashboard_can_be_imported(name: str) -> None:
    dashboard = dashboards()[name]
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = {"datasource"}
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            used |= set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
    assert used == variables
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        assert not _overlap(one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    )
