"""A loopback stand-in for Cloud Monitoring: the part of `MetricService` that writes metrics.

It enforces the rules for writers in the public reference of ``google.monitoring.v3``, with the
real service's error answers. Needs the extra ``metrics``.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, Final, Self

import grpc
from google.api import metric_pb2
from google.cloud import monitoring_v3

from shared_pathways_service.servers.serving.listening import stop_blocking_server

__all__ = ["FakeMonitoring", "WrittenPoint"]

_SERVICE: Final = "google.monitoring.v3.MetricService"
_MAX_SERIES: Final = 200
_CUSTOM: Final = "custom.googleapis.com/"
#: Labels of each kind of monitored resource, without the project.
_RESOURCES: Final = {"global": frozenset({"project_id"})}
_VALUES: Final = {"bool_value": "BOOL", "int64_value": "INT64", "double_value": "DOUBLE"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenPoint:
    """One point of one time series.

    Attributes:
      metric: Its type, e.g. ``custom.googleapis.com/shared_pathways_service/capacity_in_use``.
      labels: The metric's.
      value_type: e.g. ``INT64``.
      at: End of its interval, seconds since the epoch.
    """

    project: str
    metric: str
    labels: Mapping[str, str]
    resource: str
    value_type: str
    value: float
    at: float


class _RejectedError(Exception):
    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


class FakeMonitoring:
    """The service, in threads, on a loopback port. Use as a context manager.

    Args:
      project: The only existing project.
      spacing_s: The minimum interval in seconds between two points of one time series.
      fail: Returns the error status for a call of this method, or None to serve it.
      certificate: Of the server, with its key, as PEM, for https://; None: http://.

    Attributes:
      url: The service's URL, for ``CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING``.
      calls: Methods that were called, in order.
    """

    def __init__(
        self,
        project: str = "fake-project",
        *,
        spacing_s: float = 5.0,
        fail: Callable[[str], grpc.StatusCode | None] = lambda _method: None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self._project = project
        self._spacing_s = spacing_s
        self._fail = fail
        self._changed = threading.Condition()
        self._descriptors: dict[str, metric_pb2.MetricDescriptor] = {}
        self._points: list[WrittenPoint] = []
        self.calls: list[str] = []
        self._pool = futures.ThreadPoolExecutor(2, thread_name_prefix="fake-monitoring")
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._listen(certificate)}/"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        stop_blocking_server(self._server)
        self._pool.shutdown()

    @property
    def descriptors(self) -> Mapping[str, metric_pb2.MetricDescriptor]:
        """Descriptors by metric type."""
        with self._changed:
            return dict(self._descriptors)

    @property
    def points(self) -> list[WrittenPoint]:
        """The written points, in order."""
        with self._changed:
            return list(self._points)

    def values(self, name: str) -> list[float]:
        """Returns the values of a metric whose type ends in ``/NAME``, in order."""
        return [point.value for point in self.points if point.metric.endswith(f"/{name}")]

    def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until a condition holds after a call; returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    # ---- the methods

    def _list(
        self, request: monitoring_v3.ListMetricDescriptorsRequest
    ) -> monitoring_v3.ListMetricDescriptorsResponse:
        self._check_project(request.name)
        before, _, rest = request.filter.partition("starts_with(")
        if request.filter and (before.strip() != "metric.type =" or not rest.endswith('")')):
            raise _invalid(f"filter {request.filter!r} is not understood here")
        prefix = rest.removesuffix(")").strip('"')
        found = [d for name, d in sorted(self._descriptors.items()) if name.startswith(prefix)]
        return monitoring_v3.ListMetricDescriptorsResponse(metric_descriptors=found)

    def _create(
        self, request: monitoring_v3.CreateMetricDescriptorRequest
    ) -> metric_pb2.MetricDescriptor:
        self._check_project(request.name)
        given = request.metric_descriptor
        if not given.type.startswith(_CUSTOM):
            raise _invalid(f"metric type {given.type!r} is not a custom one")
        if not given.metric_kind or not given.value_type:
            raise _invalid("a metric descriptor needs a kind and a value type")
        known = self._descriptors.get(given.type)
        if known and (known.metric_kind, known.value_type) != (given.metric_kind, given.value_type):
            raise _invalid(f"{given.type} is of another kind or value type")
        made = metric_pb2.MetricDescriptor()
        made.CopyFrom(given)
        made.name = f"projects/{self._project}/metricDescriptors/{given.type}"
        self._descriptors[given.type] = made
        return made

    def _write(self, request: monitoring_v3.CreateTimeSeriesRequest) -> None:
        self._check_project(request.name)
        if not 0 < len(request.time_series) <= _MAX_SERIES:
            raise _invalid(f"{len(request.time_series)} time series in a call")
        # As in the real service, valid points are written even if others are not valid.
        failures = []
        for index, series in enumerate(request.time_series):
            try:
                self._points.append(self._point(series))
            except _RejectedError as error:
                failures.append(f"timeSeries[{index}]: {error}")
        if failures:
            raise _invalid(f"One or more TimeSeries could not be written: {'; '.join(failures)}")

    def _point(self, series: monitoring_v3.TimeSeries) -> WrittenPoint:
        if len(series.points) != 1:
            raise _invalid("must have exactly one point")
        known = _RESOURCES.get(series.resource.type)
        if known is None or not known.issuperset(series.resource.labels):
            raise _invalid(f"unrecognized resource {series.resource}")
        point = series.points[0]
        kind = monitoring_v3.TypedValue.pb(point.value).WhichOneof("value")
        value_type = _VALUES.get(kind or "", "")
        labels = dict(series.metric.labels)
        self._check_metric(series.metric.type, value_type, labels)
        pb = monitoring_v3.TimeInterval.pb(point.interval)
        if pb.HasField("start_time") and pb.start_time != pb.end_time:
            raise _invalid("the interval of a gauge must be a moment")
        at = pb.end_time.seconds + pb.end_time.nanos / 1e9
        made = WrittenPoint(
            project=self._project,
            metric=series.metric.type,
            labels=labels,
            resource=series.resource.type,
            value_type=value_type,
            value=getattr(point.value, kind or ""),
            at=at,
        )
        before = [p.at for p in self._points if (p.metric, p.labels) == (made.metric, made.labels)]
        if before and at <= before[-1]:
            raise _invalid("Points must be written in order")
        if before and at < before[-1] + self._spacing_s:
            raise _invalid(
                "One or more points were written more frequently than the maximum sampling "
                "period configured for the metric."
            )
        return made

    def _check_metric(self, name: str, value_type: str, labels: Mapping[str, str]) -> None:
        described = self._descriptors.get(name)
        if described is None:
            keys = [{"key": key} for key in labels]
            given = {"type": name, "metric_kind": "GAUGE", "value_type": value_type, "labels": keys}
            self._create(
                monitoring_v3.CreateMetricDescriptorRequest(
                    name=f"projects/{self._project}", metric_descriptor=given
                )
            )
            return
        wanted = metric_pb2.MetricDescriptor.ValueType.Name(described.value_type)
        if wanted != value_type:
            raise _invalid(f"Value type for metric {name} must be {wanted}, but is {value_type}")
        if unknown := set(labels) - {label.key for label in described.labels}:
            raise _invalid(f"unrecognized metric labels {sorted(unknown)}")

    def _check_project(self, name: str) -> None:
        if name != f"projects/{self._project}":
            raise _RejectedError(grpc.StatusCode.NOT_FOUND, f"{name} does not exist")

    # ---- the server

    def _listen(self, certificate: tuple[str, str] | None) -> int:
        if certificate is None:
            return self._server.add_insecure_port("127.0.0.1:0")
        chain, key = (text.encode() for text in certificate)
        tls = grpc.ssl_server_credentials([(key, chain)])
        return self._server.add_secure_port("127.0.0.1:0", tls)

    def _handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, tuple[Callable[[Any], Any], Any, Callable[[Any], bytes]]] = {
            "ListMetricDescriptors": (
                self._list,
                monitoring_v3.ListMetricDescriptorsRequest.deserialize,
                monitoring_v3.ListMetricDescriptorsResponse.serialize,
            ),
            "CreateMetricDescriptor": (
                self._create,
                monitoring_v3.CreateMetricDescriptorRequest.deserialize,
                metric_pb2.MetricDescriptor.SerializeToString,
            ),
            "CreateTimeSeries": (
                self._write,
                monitoring_v3.CreateTimeSeriesRequest.deserialize,
                lambda _nothing: b"",
            ),
        }
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._answering(name, method),
                    request_deserializer=reads,
                    response_serializer=writes,
                )
                for name, (method, reads, writes) in methods.items()
            },
        )

    def _answering(
        self, name: str, method: Callable[[Any], Any]
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            shown = dict(context.invocation_metadata())
            with self._changed:
                self.calls.append(name)
                self._changed.notify_all()
                if (status := self._fail(name)) is not None:
                    context.abort(status, f"{name} fails, as scripted")
                if not str(shown.get("authorization", "")).startswith("Bearer "):
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no access token")
                try:
                    return method(request)
                except _RejectedError as error:
                    context.abort(error.status, str(error))

        return answer


def _invalid(text: str) -> _RejectedError:
    return _RejectedError(grpc.StatusCode.INVALID_ARGUMENT, text)
