"""Provides `connect`, which gets slices for a ``with`` block. The module's name is upstream's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from shared_pathways_service.agent.request import request_of_this_user
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.requests import (
    DEFAULT_LINK,
    DEFAULT_NAMESPACE,
    DEFAULT_PROXY_IMAGE,
)
from shared_pathways_service.connection import Connection
from shared_pathways_service.events import Event

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

__all__ = ["Connection", "DEFAULT_PROXY_IMAGE", "ProxyOptions", "connect"]


def connect(  # noqa: PLR0917 - upstream's, in upstream's order
    cluster: str | None = None,
    project: str | None = None,
    region: str | None = None,
    gcs_bucket: str | None = None,
    pathways_service: str | None = None,
    expected_tpu_instances: Mapping[str, int] | None = None,
    proxy_job_name: str | None = None,
    proxy_server_image: str | None = None,
    proxy_options: ProxyOptions | Sequence[str] | None = None,
    collect_service_metrics: bool = False,
    *,
    context: str | None = None,
    api_client: ApiClient | Configuration | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    wait: Literal["placed", "ready"] = "placed",
    queue_timeout: float | None = None,
    timeout: float = 300.0,
    elastic_slices: int = 0,
    priority: int | str | None = None,
    labels: Mapping[str, str] | None = None,
    max_lifetime: float | None = None,
    link: Literal["resumable", "plain"] = DEFAULT_LINK,
    keep_for: float | str | None = None,
    local_port: int | None = None,
    local_devices: bool = True,
    strict: bool | None = None,
    tune_allocator: bool = False,
    on_event: Callable[[Event], object] | None = None,
    profile: str | None = None,
) -> Connection:
    """Requests slices of a shared service; inside the block, this process's JAX runs on them.

    The request is checked here. The connection starts when the block is entered, or with
    `Connection.start`.

    Args:
      cluster: A GKE cluster; needs `project` and `region`.
      project: Its project.
      region: Its region or zone.
      gcs_bucket: ``gs://name[/path]``, for the service's files; ``gs://`` may be left out.
      pathways_service: ``host:port`` of the service's resource manager.
      expected_tpu_instances: Number of slices by instance type, e.g. ``{"tpuv6e:2x2": 2}``; GKE's
        and xpk's names are accepted too: ``ct6e-standard-4t:4x4``, ``v6e-16``. None: one slice of
        the service's first type.
      proxy_job_name: The session's name, a DNS label; None: generated.
      proxy_server_image: The proxy's container image; None: the one that matches the service.
      proxy_options: `ProxyOptions`, or its ``key:value`` texts; an unknown key is ignored with a
        `UserWarning`.
      collect_service_metrics: Whether metrics of use and waiting are sent to Google Cloud
        Monitoring, in the cluster's project, or else in that of the Application Default
        Credentials. Needs the extra ``metrics``; if something is missing, the event
        ``metrics.unavailable`` reports it, and work continues.
      context: A kubeconfig context, instead of `cluster`.
      api_client: The official client, set up, instead of `cluster` and `context`: a
        ``kubernetes.client.ApiClient`` or a ``kubernetes.client.Configuration``. Its
        ``refresh_api_key_hook`` is called again, on another thread, while the connection lasts.
      namespace: The namespace of the service in a cluster.
      wait: ``placed``, or ``ready`` to enter the block as soon as the proxy answers.
      queue_timeout: Seconds to wait for slices that are taken, may be infinite; None: fail at once.
      timeout: Seconds for the service and the proxy to become ready, and again for placement.
      elastic_slices: Number of slices that may be missing at the start.
      priority: Higher goes first in the queue, and may preempt lower ones: a number, or
        ``low-priority-job`` (1,000,000) or ``high-priority-job`` (2,000,000); in a cluster, also
        any of its PriorityClasses, whose value is read there; None: 0.
      labels: Labels added to the proxy's Job.
      max_lifetime: Seconds after which the proxy ends in any case; None: with the block.
      link: ``resumable``: when the connection with a proxy in a cluster breaks, JAX waits, and goes
        on once it is there again; ``plain``: JAX's session ends then. The embedded service ignores
        it, as its sockets do not break.
      keep_for: How long a proxy in a cluster outlives the last sign of life of this session, such
        as a machine that sleeps: seconds, or a text like ``"90s"``, ``"30m"`` or ``"2h"``; at least
        a minute. None: the setting `proxy_deadline_s`, 10 minutes by default. The embedded service
        ignores it.
      local_port: A loopback TCP port for the proxy, 0 for any; None: a private Unix socket.
      local_devices: Whether this machine's CPU can be used beside the proxy's devices, as
        ``jax.devices("cpu")``; JAX creates its client on first use.
      strict: Whether to refuse features that Google's proxies refuse (Python callbacks inside
        ``jit``), so that programs that work here work there; None: as SPS_STRICT, or else False.
      tune_allocator: Whether to configure glibc's allocator of this process, permanently, to keep
        freed memory: large arrays are fetched faster, but the process stays at its peak size.
      on_event: Called with each `Event`, on another thread; its errors are only logged.
      profile: A profile of the settings file.

    Returns:
      The connection, not yet started.

    Raises:
      InvalidRequestError: A field is invalid; `field` names it.
    """
    place = {"cluster": cluster, "project": project, "region": region, "context": context}
    request = request_of_this_user(
        **place,
        gcs_bucket=gcs_bucket,
        pathways_service=pathways_service,
        expected_tpu_instances=expected_tpu_instances,
        proxy_job_name=proxy_job_name,
        proxy_server_image=proxy_server_image,
        proxy_options=proxy_options,
        collect_service_metrics=collect_service_metrics,
        api_client=api_client,
        namespace=namespace,
        wait=wait,
        queue_timeout=queue_timeout,
        timeout=timeout,
        elastic_slices=elastic_slices,
        priority=priority,
        labels=labels,
        max_lifetime=max_lifetime,
        link=link,
        keep_for=keep_for,
        local_port=local_port,
        local_devices=local_devices,
        strict=strict,
        tune_allocator=tune_allocator,
        on_event=on_event,
        profile=profile,
    )
    return Connection(request)
