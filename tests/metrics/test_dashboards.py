"""Grafana's dashboards and Prometheus' alerts, apart from the servers.

That servers expose the metrics and labels of the queries is tested where servers are scraped:
`harness.promql.check_queries`.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric

from harness.layers.needed_programs import needed_program
from harness.processes import DEADLINE_S, REPOSITORY
from harness.promql import (
    Use,
    annotation_queries,
    check_queries,
    dashboards,
    queries,
    rules,
    uses,
)
from tests.docs.blocks import blocks_of
from tests.metrics.grafana_schema import problems

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


def test_every_metric_of_a_query_is_documented() -> None:
    documents = ("metrics.md", "debugging.md")
    texts = [(REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in documents]
    documented = {
        # (Tables shorten a name after the first of a row.)
        name.replace("…", "sps_proxy")
        for text in texts
        for name in re.findall(r"`((?:sps|…)_\w+)`", text)
    }
    for query in queries():
        for name in {name for use in uses(query.text) for name in use.metrics} - {"up"}:
            family = re.sub(r"_(total|bucket|info)$", "", name)
            assert {name, family} & documented, f"{query.where}: {name}"


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_a_dashboard_can_be_imported(name: str) -> None:
    dashboard = dashboards()[name]
    assert problems(dashboard) == []
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval", "__all"}
    assert used == variables >= {"datasource", "namespace"}
    for part in [*dashboard["panels"], *_own_annotations(dashboard)]:
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        assert not _overlap(one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert (dashboard["refresh"], dashboard["time"]) == ("30s", {"from": "now-6h", "to": "now"})


def test_dashboards_are_told_apart_and_link_to_each_other() -> None:
    by_uid = {one["uid"]: one for one in dashboards().values()}
    assert len(by_uid) == len(dashboards()) == len({one["title"] for one in by_uid.values()})
    linked = {link["url"] for one in by_uid.values() for link in one["links"]}
    assert linked == {f"/d/{uid}" for uid in by_uid}


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_a_panel_says_what_it_shows_and_what_to_do(name: str) -> None:
    panels = dashboards()[name]["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    alerts = {rule["alert"] for rule in rules()}
    for panel in panels:
        title, told = panel["title"], panel["description"]
        assert panel["targets"], title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert re.fullmatch(r".+ Unit: .+ Normal: .+\.", told), title
        assert set(re.findall(r"`(Sps\w+)`", told)) <= alerts, title


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda one: one.update(refresh=30), "$.refresh: 30 is not"),
        (lambda one: one["panels"][0].update(kind="x"), "$.panels[0].kind: no such field"),
        (lambda one: one["panels"][0]["gridPos"].update(x="a"), "$.panels[0].grid_pos.x: 'a'"),
        (
            lambda one: one["panels"][0]["options"].update(justifyMode="many"),
            "$.panels[0].options.justify_mode: 'many' is not",
        ),
        (
            lambda one: one["panels"][0]["targets"][0].update(query="x"),
            "$.panels[0].targets[0].query: no such field",
        ),
        (
            lambda one: one["annotations"]["list"][1].update(color="red"),
            "$.annotations.list[1].color: no such field",
        ),
        (lambda one: one["templating"]["list"][0].update(hide=7), ".hide: 7 is not"),
    ],
)
def test_what_grafana_does_not_understand_is_found(
    change: Callable[[dict[str, Any]], object], found: str
) -> None:
    dashboard = copy.deepcopy(dashboards()["service.json"])
    change(dashboard)
    [problem] = problems(dashboard)
    assert found in problem


def test_the_documented_config_map_has_the_dashboards_and_the_label() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    blocks = blocks_of(REPOSITORY / "docs" / "metrics.md")
    [block] = [block for block in blocks if block.first_line.startswith("kubectl create configmap")]
    offline, _, last = block.text.rpartition("|")
    assert last.split()[:2] == ["kubectl", "apply"]
    made = subprocess.run(
        offline, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=True,
        timeout=DEADLINE_S, env={**os.environ, "KUBECONFIG": os.devnull},
    )  # fmt: skip
    config_map = yaml.safe_load(made.stdout)
    assert config_map["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert {name: json.loads(text) for name, text in config_map["data"].items()} == dashboards()


#: Samples of a counter, one each 30 s: from 2 to 3 after 3 minutes, and a restart after 8.
_COUNTED = "2x5 3x9 0x20"
#: By seconds since its first sample whether Prometheus reports growth in the last 2 minutes.
_GROWN = {60: False, 210: True, 240: True, 360: False, 500: False, 900: False}
_ANNOTATIONS = {"Slices lost": "slice.lost", "Tenants preempted": "tenant.preempted"}


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_annotations_select_losses_and_preemptions(name: str) -> None:
    found = list(annotation_queries(name, dashboards()[name]))
    assert [query.where for query in found] == [f"{name}: {title}" for title in _ANNOTATIONS]
    for query, kind in zip(found, _ANNOTATIONS.values(), strict=True):
        [use] = [one for one in uses(query.text) if "kind" in one.labels]
        assert use.metrics == {"sps_rm_decisions_total"}
        assert use.labels["kind"] == (kind,)


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_an_annotation_is_where_its_counter_grows(name: str, tmp_path: Path) -> None:
    """Prometheus finds the moment, and none after a restart or for another kind of decision."""
    queries_of_kinds = zip(
        annotation_queries(name, dashboards()[name]), _ANNOTATIONS.values(), strict=True
    )
    tests = []
    for query, kind in queries_of_kinds:
        series = [
            {
                "series": f'sps_rm_decisions_total{{instance="{of}", kind="{of}"}}',
                "values": _COUNTED,
            }
            for of in (kind, "slice.placed")
        ]
        # (As Grafana asks it, with All for each variable, of a service that is scraped each 30 s.)
        text = re.sub(r"\$\w+", ".*", query.text.replace("5m", "2m"))
        grown = [{"labels": f'{{instance="{kind}"}}', "value": 1}]
        asked = [
            {
                "expr": f"({text}) > bool 0",
                "eval_time": f"{at}s",
                "exp_samples": grown if has_grown else [],
            }
            for at, has_grown in _GROWN.items()
        ]
        tests.append({"interval": "30s", "input_series": series, "promql_expr_test": asked})
    _promtool(tmp_path, tests)


def test_an_alert_fires_at_the_first_report_of_its_kind(tmp_path: Path) -> None:
    [rule] = [rule for rule in rules() if rule["alert"] == "SpsProxyNearMemoryLimit"]
    labels = {"job": "rm", "instance": "a", "kind": "proxy.memory_near_limit"}
    named = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    series = {"series": f"sps_rm_decisions_total{{{named}}}", "values": "0x3 1x30"}
    fired = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": rule["annotations"],
    }
    asked = [
        {"alertname": rule["alert"], "eval_time": f"{at}m", "exp_alerts": then}
        for at, then in ((2, []), (5, [fired]), (20, []))
    ]
    test = {"interval": "1m", "input_series": [series], "alert_rule_test": asked}
    _promtool(tmp_path, [test], REPOSITORY / "yamls" / "prometheus" / "alerts.yaml")


def _promtool(directory: Path, tests: list[dict[str, Any]], *files: Path) -> None:
    """Has Prometheus' own tool answer queries; skips where it is not installed, except in CI."""
    program = needed_program("promtool", "install it, e.g. apt-get install prometheus")
    path = directory / "tests.yaml"
    path.write_text(json.dumps({"rule_files": [str(file) for file in files], "tests": tests}))
    answer = subprocess.run(
        [program, "test", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _own_annotations(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in dashboard["annotations"]["list"] if not one.get("builtIn")]


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    )
