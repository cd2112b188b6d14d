"""Checks the gRPC credentials of a running proxy in a cluster, for `sps doctor`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.cluster_state.proxy_progress import Stage, read_progress
from shared_pathways_service.constants import PROXY_PORT
from shared_pathways_service.errors import (
    CredentialsMismatch,
    ServiceNotFound,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.homes.kubernetes.dial import dial_pod
from shared_pathways_service.jax_client.credentials import check_plaintext, wait_until_silent
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests.names import PROXY_CONTAINER
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol.ifrt.probe import probe
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.tunnel.relay import Relay

__all__ = ["proxy_credentials_check"]

Object = Mapping[str, Any]

_NAME = "proxy credentials"


async def proxy_credentials_check(
    where: ServiceChoice, job_name: str, settings: Settings, timeout_s: float, *, is_plaintext: bool
) -> Check:
    """Connects to a proxy, without JAX's client, and compares its credentials with the client's.

    Args:
      where: The proxy's cluster.
      job_name: The proxy's Job.
      settings: The user's settings.
      timeout_s: Seconds for each answer.
      is_plaintext: Whether the client uses plaintext.
    """
    try:
        async with opened(where) as cluster:
            job, pod = await _running(cluster, job_name)
            setting = _setting(job)
            relay = Relay(
                lambda headers: dial_pod(cluster.api, cluster.namespace, pod, PROXY_PORT, headers),
                pod=pod,
                runtime_dir=settings.runtime_dir,
            )
            async with contextlib.AsyncExitStack() as undo:
                undo.push_async_callback(relay.close)
                address = await relay.start()
                try:
                    await asyncio.to_thread(_connect, address, timeout_s, is_plaintext=is_plaintext)
                except SharedPathwaysError as error:
                    # The message names the address of this check's own tunnel.
                    error.message = error.message.replace(address, job_name)
                    raise
    except CredentialsMismatch as error:
        # The error does not contain the proxy's setting.
        message = error.message.replace(error.proxy, setting)
        mismatch = CredentialsMismatch(message, client=error.client, proxy=setting, hint=error.hint)
        return Check.failed(_NAME, mismatch)
    except SharedPathwaysError as error:
        return Check.failed(_NAME, error)
    found = f"{job_name} uses {'plaintext' if is_plaintext else 'ALTS'} ({setting})"
    return Check(name=_NAME, outcome=Outcome.OK, found=found)


async def _running(cluster: Cluster, job_name: str) -> tuple[Object, str]:
    """Returns the Job of a running proxy, and the name of its pod."""
    job = await cluster.api.find(item("jobs", cluster.namespace, job_name))
    if job is None:
        raise ServiceNotFound(
            f"there is no Job {job_name} in namespace {cluster.namespace}",
            hint=f"`{cluster.sps('list', '--all')}` shows the proxies there",
        )
    progress = read_progress(job, await cluster.items("pods", f"job-name={job_name}"))
    if progress.stage is not Stage.RUNNING:
        raise ServiceNotReady(f"the proxy {job_name} is not running: {progress.reason}")
    return job, progress.pod


def _connect(address: str, timeout_s: float, *, is_plaintext: bool) -> None:
    if not is_plaintext:
        wait_until_silent(address, min(timeouts.PROXY_SILENCE.s, timeout_s))
        return
    check_plaintext(address, timeout_s)
    greeting = greet(address, timeout_s)
    if greeting is not Greeting.HTTP2:
        raise ServiceNotReady(f"the proxy does not answer plaintext gRPC; it sent {greeting.value}")
    # The only way to find the release of JAX in an image whose tag does not name it.
    probe(address, timeout_s)


def _setting(job: Object) -> str:
    """Returns the variable of a proxy's container, as ``VARIABLE=value``."""
    containers = job["spec"]["template"]["spec"].get("containers") or ()
    mine = (c for c in containers if c.get("name") == PROXY_CONTAINER)
    container: Object = next(mine, {})
    for variable in container.get("env") or ():
        if variable.get("name") == INSECURE_VARIABLE:
            # Without a value the variable comes from elsewhere, e.g. from a ConfigMap.
            return f"{INSECURE_VARIABLE}={variable.get('value', '…')}"
    return f"{INSECURE_VARIABLE} is not set"
