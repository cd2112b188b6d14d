"""The queries of Grafana's dashboards and Prometheus' alerts, compared with served metrics."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import promql_parser as promql
import yaml
from prometheus_client import Metric

from harness.processes import REPOSITORY
from shared_pathways_service.events import Event, OtherEvent

__all__ = [
    "Query",
    "Use",
    "annotation_queries",
    "check_queries",
    "dashboards",
    "queries",
    "rules",
    "uses",
]

#: Labels that Prometheus adds to each sample that it scrapes; ``namespace`` only in a cluster.
_SCRAPED = {"job", "instance", "namespace"}
_VARIABLE = re.compile(r"\$\w+")
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclasses.dataclass(frozen=True)
class Query:
    """A query of a file.

    Attributes:
      where: The file and the panel or alert, for messages.
      text: In PromQL; Grafana's intervals are replaced.
      labels: Labels that the texts of the panel or alert use.
    """

    where: str
    text: str
    labels: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Use:
    """The use of labels in a query.

    Attributes:
      labels: The matched values by label; empty: any value. Labels by which the query groups or
        joins have any value.
      metrics: The names of the samples, one of which at least must have each label.
    """

    labels: Mapping[str, tuple[str, ...]]
    metrics: frozenset[str]


def dashboards() -> dict[str, Any]:
    """Returns Grafana's dashboards by the name of their file."""
    files = sorted((REPOSITORY / "yamls" / "grafana").glob("*.json"))
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def rules() -> list[dict[str, Any]]:
    """Returns Prometheus' alerts."""
    path = REPOSITORY / "yamls" / "prometheus" / "alerts.yaml"
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[Query]:
    """Yields the queries of all files."""
    for rule in rules():
        used = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
        yield Query(f"alerts.yaml: {rule['alert']}", rule["expr"], frozenset(used))
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                used = re.findall(r"{{(\w+)}}", target["legendFormat"])
                yield Query(f"{name}: {panel['title']}", _at_once(target["expr"]), frozenset(used))
        yield from annotation_queries(name, dashboard)
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                asked = _LABEL_VALUES.fullmatch(variable["query"]["query"])
                assert asked, f"{name}: ${variable['name']} asks for the values of a label"
                yield Query(f"{name}: ${variable['name']}", asked[1], frozenset({asked[2]}))


def annotation_queries(name: str, dashboard: Mapping[str, Any]) -> Iterator[Query]:
    """Yields the queries of a dashboard's annotations, but for those that Grafana keeps itself."""
    for one in dashboard["annotations"]["list"]:
        if not one.get("builtIn"):
            used = one["tagKeys"].split(",")
            yield Query(f"{name}: {one['name']}", _at_once(one["expr"]), frozenset(used))


def uses(text: str) -> list[Use]:
    """Returns the uses of metrics and labels in a query; raises ValueError if it is not PromQL."""
    return list(_uses(promql.parse(text)))


def check_queries(families: Iterable[Metric], prefix: str) -> None:
    """Asserts that queries use only metrics, labels and values that are served.

    Args:
      families: The served families.
      prefix: Of the names that are compared; at least one query must use one.
    """
    served: dict[str, list[dict[str, str]]] = {}
    for family in families:
        if not family.samples:
            served[family.name] = []
        for sample in family.samples:
            served.setdefault(sample.name, []).append(sample.labels)
    checked = 0
    for query in queries():
        found = uses(query.text)
        metrics = frozenset().union(*(use.metrics for use in found))
        ours = {name for name in metrics if name.startswith(prefix)}
        checked += len(ours)
        assert ours <= served.keys(), f"{query.where}: {ours - served.keys()} is not served"
        for use in [*found, Use(dict.fromkeys(query.labels, ()), metrics)]:
            samples = [served.get(name) for name in use.metrics]
            # (A metric without samples at this time may have any label; others are not compared.)
            if all(samples):
                _check_labels(use, [labels for one in samples for labels in one or ()], query.where)
    assert checked


def _at_once(expression: str) -> str:
    """Returns a query with a length in place of the one that Grafana chooses by the picture."""
    return expression.replace("$__rate_interval", "5m")


def _check_labels(use: Use, samples: list[dict[str, str]], where: str) -> None:
    for label, values in use.labels.items():
        known = {labels[label] for labels in samples if label in labels}
        assert known or label in _SCRAPED, f"{where}: {set(use.metrics)} have no label {label}"
        for value in values:
            # (A decision or event need not have happened in the test.)
            is_event = label == "kind" and not isinstance(Event.of(value, source="rm"), OtherEvent)
            assert value in known or is_event, (
                f"{where}: {set(use.metrics)} have no {label}={value}"
            )


def _uses(expr: Any) -> Iterator[Use]:
    if isinstance(expr, promql.VectorSelector):
        assert expr.name, "a query names its metrics"
        matched = {one.name: _values_of(one) for one in expr.matchers.matchers}
        yield Use(matched, frozenset({expr.name}))
    modifier = getattr(expr, "modifier", None)
    if isinstance(expr, promql.BinaryExpr):
        modifier = modifier.matching if modifier is not None else None
    for below in _below(expr):
        found = list(_uses(below))
        yield from found
        if modifier is not None and found:
            metrics = frozenset().union(*(use.metrics for use in found))
            yield Use(dict.fromkeys(modifier.labels, ()), metrics)


def _below(expr: Any) -> list[Any]:
    if isinstance(expr, promql.MatrixSelector):
        return [expr.vector_selector]
    if isinstance(expr, promql.Call):
        return list(expr.args)
    if isinstance(expr, promql.BinaryExpr):
        return [expr.lhs, expr.rhs]
    if isinstance(expr, promql.VectorSelector | promql.NumberLiteral | promql.StringLiteral):
        return []
    return [expr.expr]


def _values_of(one: promql.Matcher) -> tuple[str, ...]:
    if _VARIABLE.search(one.value) or one.name in _SCRAPED:
        return ()
    return tuple(one.value.split("|")) if one.op == promql.MatchOp.Re else (one.value,)
