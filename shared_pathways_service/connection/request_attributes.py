"""Attributes of a connection that programs written for pathwaysutils read.

Their names are those of upstream's connection object (pathwaysutils 0.1.13). As there, they can be
read before the block is entered.
"""

from __future__ import annotations

from collections import Counter

from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.requests import SessionRequest

__all__ = ["RequestAttributes", "MetricsCollector"]


class MetricsCollector:
    """Accepts upstream's calls that record a metric.

    The agent measures and sends the metrics itself (``collect_service_metrics=True``), so the calls
    have no effect.

    Attributes:
      is_collecting: Whether metrics are sent.
    """

    def __init__(self, *, is_collecting: bool) -> None:
        self.is_collecting = is_collecting

    def record_active_user(self, is_active: bool) -> None:
        """Has no effect: the agent records it."""

    def record_capacity_in_use(self, chips: int) -> None:
        """Has no effect: the agent records it."""

    def record_requested_capacity(self, chips: int) -> None:
        """Has no effect: the agent records it."""

    def record_assignment_time(self, duration_seconds: float) -> None:
        """Has no effect: the agent records it."""

    def record_successful_request(self) -> None:
        """Has no effect: the agent records it."""

    def record_user_waiting(self, is_waiting: bool) -> None:
        """Has no effect: the agent records it."""


class RequestAttributes:
    """The part of a connection that follows from its request alone."""

    def __init__(self, request: SessionRequest) -> None:
        self._request = request
        self._start_time: float | None = None
        self._metrics_collector = MetricsCollector(is_collecting=request.collect_service_metrics)

    @property
    def cluster(self) -> str | None:
        """The GKE cluster; None if no cluster was named."""
        return self._request.service.cluster

    @property
    def project(self) -> str | None:
        """The cluster's Google Cloud project; None if no cluster was named."""
        return self._request.service.project

    @property
    def region(self) -> str | None:
        """The cluster's region or zone; None if no cluster was named."""
        return self._request.service.region

    @property
    def bucket(self) -> str | None:
        """The bucket for scratch data, with its ``gs://``; None if none was named."""
        return self._request.gcs_bucket

    @property
    def pathways_service(self) -> str | None:
        """``host:port`` of the service's resource manager; None if it was not named."""
        return self._request.service.pathways_service

    @property
    def expected_tpu_instances(self) -> dict[str, int]:
        """Number of slices by instance type; empty: one of the service's first type."""
        return dict(Counter(self._request.tenant.type_names))

    @property
    def proxy_job_name(self) -> str:
        """The session's name, and its proxy's."""
        return self._request.name

    @property
    def proxy_server_image(self) -> str:
        """The proxy's image as requested.

        `isc_pathways.DEFAULT_PROXY_IMAGE` stands for the one that matches the service, which is
        looked up when the block is entered.
        """
        return self._request.proxy_server_image

    @property
    def proxy_options(self) -> ProxyOptions:
        """The proxy's options."""
        return self._request.proxy_options

    @property
    def metrics_collector(self) -> MetricsCollector:
        """Accepts upstream's calls; the agent measures and sends the metrics itself."""
        return self._metrics_collector

    @property
    def start_time(self) -> float | None:
        """Time of the connection's last start, as from `time.time`; None before that."""
        return self._start_time
