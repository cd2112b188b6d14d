"""Writes a session's metrics to Google Cloud Monitoring.

Its library comes with the extra ``metrics``. It is imported when the first points are written, in a
thread, because that takes a second. Calls carry google-auth's tokens, which are fetched in this
event loop, so that nothing outlives the loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from shared_pathways_service.errors import AccessDenied, InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.kube.http_proxies import NetworkProxy, proxy_of_environment
from shared_pathways_service.kube.tls import UNTRUSTED_HINT, trusted_authorities
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.session.cloud_metrics import LABELS, METRICS, PREFIX, Metric, Reading

if TYPE_CHECKING:
    import grpc
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud import monitoring_v3

__all__ = ["ENDPOINT_VARIABLE", "CloudMonitoring", "Delayed", "Refused", "Unavailable"]

#: gcloud's variable for the endpoint of Cloud Monitoring.
ENDPOINT_VARIABLE: Final = "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING"
_ENDPOINT: Final = "https://monitoring.googleapis.com/"

#: Statuses that are permanent, and those that are temporary; others concern only these points.
_FINAL: Final = ("PERMISSION_DENIED", "NOT_FOUND")
_PASSING: Final = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNKNOWN",
)

#: In gRPC's text for a server that no trusted authority has certified.
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"

_log = logging.getLogger(__name__)


class Unavailable(Exception):  # noqa: N818 - reads as what happened, like its kin
    """No metrics can be written in this session."""


class Delayed(Exception):  # noqa: N818
    """The points were not written, but may be written later."""


class Refused(Exception):  # noqa: N818
    """These points were refused permanently; others may be accepted."""


class CloudMonitoring:
    """One session's time series, in a project or else in that of the user's credentials."""

    def __init__(self, *, project: str, labels: Mapping[str, str]) -> None:
        self._project = project
        self._labels = dict(labels)
        self._user = GoogleUser()
        self._channel: grpc.aio.Channel | None = None
        self._proxy: NetworkProxy | None = None
        self._client: monitoring_v3.MetricServiceAsyncClient | None = None
        self._is_declared = False
        self._written_at = 0.0

    async def write(self, readings: Sequence[Reading], at: float) -> None:
        """Writes one point per metric, at this time in seconds since the epoch.

        Raises:
          Unavailable: The library, the credentials, the project or the permission is missing.
          Delayed: The call timed out, or failed temporarily.
          Refused: These points were refused.
        """
        # (If the clock was set back, points must not precede those already written.)
        self._written_at = max(at, self._written_at)
        series = [_time_series(reading, self._labels, self._written_at) for reading in readings]
        try:
            async with within(timeouts.MONITORING_WRITE):
                client = self._client or await self._connect()
                if not self._is_declared:
                    await self._declare(client)
                await self._send(client, series)
        except TimeoutError as error:
            limit = f"{timeouts.MONITORING_WRITE.s:g} s"
            raise Delayed(f"no answer within {limit}{self._way()}") from error
        except (AccessDenied, InvalidRequestError) as error:
            raise Unavailable(str(error)) from error
        except SharedPathwaysError as error:
            raise Delayed(str(error)) from error

    async def close(self) -> None:
        """Closes the connection."""
        await self._user.tokens.close()
        if self._channel is not None:
            await self._channel.close()

    async def _connect(self) -> monitoring_v3.MetricServiceAsyncClient:
        try:
            await asyncio.to_thread(importlib.import_module, "google.cloud.monitoring_v3")
        except ImportError as error:
            raise Unavailable(f"{error}: pip install 'shared-pathways-service[metrics]'") from error
        from google.cloud import monitoring_v3  # noqa: PLC0415
        from google.cloud.monitoring_v3.services.metric_service.transports import (  # noqa: PLC0415
            MetricServiceGrpcAsyncIOTransport,
        )

        if not self._project:
            self._project = await self._user.project()
        if not self._project:
            raise Unavailable(
                "no project is known: give connect() project= (with cluster=), or set "
                "GOOGLE_CLOUD_PROJECT"
            )
        if self._channel is None:
            endpoint = os.environ.get(ENDPOINT_VARIABLE) or _ENDPOINT
            self._proxy = proxy_of_environment(endpoint)
            self._channel = _channel(endpoint, self._proxy)
        transport = MetricServiceGrpcAsyncIOTransport(channel=self._channel)
        self._client = monitoring_v3.MetricServiceAsyncClient(transport=transport)
        return self._client

    async def _declare(self, client: monitoring_v3.MetricServiceAsyncClient) -> None:
        """Creates descriptors of metrics that the project does not have yet.

        Failures are ignored: a point without a descriptor creates one, only without unit and texts.
        """
        from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415

        options = await self._options()
        request = {"name": f"projects/{self._project}", "filter": _ALL_OF_OURS}
        try:
            pages = await client.list_metric_descriptors(request=request, **options)
            known = {descriptor.type async for descriptor in pages}
            for metric in METRICS:
                if PREFIX + metric.name not in known:
                    await client.create_metric_descriptor(
                        name=f"projects/{self._project}",
                        metric_descriptor=_descriptor(metric),
                        **options,
                    )
        except GoogleAPICallError as error:
            if _status(error) in _PASSING:
                raise self._translated(error) from error
            _log.info("metrics are not described: %s", error.message)
        self._is_declared = True

    async def _send(
        self, client: monitoring_v3.MetricServiceAsyncClient, series: Sequence[dict[str, Any]]
    ) -> None:
        from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415

        try:
            await client.create_time_series(
                request={"name": f"projects/{self._project}", "time_series": series},
                **await self._options(),
            )
        except GoogleAPICallError as error:
            raise self._translated(error) from error

    async def _options(self) -> dict[str, Any]:
        # (The meter decides about retries.)
        return {
            "metadata": await self._user.metadata(),
            "timeout": timeouts.MONITORING_CALL.s,
            "retry": None,
        }

    def _way(self) -> str:
        return f", through the proxy {self._proxy}" if self._proxy else ""

    def _translated(self, error: GoogleAPICallError) -> Exception:
        status = _status(error)
        way = self._way() if status == "UNAVAILABLE" else ""
        hint = f"; {UNTRUSTED_HINT}" if _UNTRUSTED in error.message else ""
        text = f"Cloud Monitoring of project {self._project}: {status}: {error.message}{way}{hint}"
        if status in _FINAL:
            return Unavailable(text)
        return Delayed(text) if status in _PASSING else Refused(text)


def _channel(endpoint: str, proxy: NetworkProxy | None) -> grpc.aio.Channel:
    """Returns a channel that trusts the authorities, and takes the way, of all our connections.

    gRPC has authorities of its own, and rules of its own for proxies: it reads variables in lower
    case only.
    """
    import grpc  # noqa: PLC0415

    url = urlsplit(endpoint)
    options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", int(proxy is not None))]
    if proxy is not None:
        options.append(("grpc.http_proxy", _proxy_of_grpc(proxy, url.netloc)))
    if url.scheme == "http":
        return grpc.aio.insecure_channel(url.netloc, options)
    tls = grpc.ssl_channel_credentials(trusted_authorities() or None)
    return grpc.aio.secure_channel(url.netloc, tls, options)


def _proxy_of_grpc(proxy: NetworkProxy, server: str) -> str:
    if proxy.scheme != "http":
        raise Unavailable(
            f"gRPC reaches {server} through proxies with http:// only, not through {proxy}: "
            f"add {server} to NO_PROXY, or name another proxy"
        )
    return proxy.url_with_login


_ALL_OF_OURS: Final = f'metric.type = starts_with("{PREFIX}")'


def _status(error: GoogleAPICallError) -> str:
    """Returns the status's name, also for a call without a response."""
    return error.grpc_status_code.name if error.grpc_status_code else "UNKNOWN"


def _descriptor(metric: Metric) -> dict[str, Any]:
    return {
        "type": PREFIX + metric.name,
        "metric_kind": "GAUGE",
        "value_type": metric.value_type,
        "unit": metric.unit,
        "description": metric.description,
        "display_name": metric.display_name,
        "labels": [
            {"key": key, "value_type": "STRING", "description": text}
            for key, text in LABELS.items()
        ],
    }


def _time_series(reading: Reading, labels: Mapping[str, str], at: float) -> dict[str, Any]:
    seconds, rest = divmod(at, 1)
    is_whole = reading.metric.value_type == "INT64"
    value = (
        {"int64_value": int(reading.value)} if is_whole else {"double_value": float(reading.value)}
    )
    end = {"seconds": int(seconds), "nanos": int(rest * 1e9)}
    return {
        "metric": {"type": PREFIX + reading.metric.name, "labels": dict(labels)},
        "resource": {"type": "global"},
        "points": [{"interval": {"end_time": end}, "value": value}],
    }
