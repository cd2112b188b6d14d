"""The official parser of OpenMetrics text."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.openmetrics import parser

__all__ = ["text_to_families"]


def text_to_families(text: str) -> list[Metric]:
    """Returns what the text tells; raises ValueError when it is not well-formed."""
    found: list[Metric] = list(parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    return found
