"""Submits a job in a cluster: checks everything, then creates its Job and its Secret."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import secrets
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state.job_reading import is_submitted_job, job_status
from shared_pathways_service.cluster_state.proxy_progress import create_refused
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.homes.job_home import Tell
from shared_pathways_service.homes.kubernetes.api_user import api_user
from shared_pathways_service.homes.kubernetes.error_translation import before_creating
from shared_pathways_service.homes.kubernetes.job_inputs import proxy_job_inputs
from shared_pathways_service.homes.kubernetes.permissions_review import (
    missing_permissions,
    review_rules,
)
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.homes.kubernetes.sent_files import upload
from shared_pathways_service.homes.kubernetes.workdir_archive import BUCKET, SECRET, pack
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.jobs.submitted_job import (
    job_secret,
    submitted_job,
    submitted_patch,
)
from shared_pathways_service.manifests.permissions import access_denied, needed
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.patience import timeouts

__all__ = ["submit_job"]

_TOKEN_BYTES = 32
#: Bytes of a job's request: its Secret has room for 1 MiB, and its files for half of it.
_LARGEST_REQUEST = 384 * 1024


async def submit_job(
    api: KubeApi, namespace: str, address: str, request: JobRequest, tell: Tell
) -> str:
    """Creates a job; a job of its name that has ended is replaced.

    Args:
      api: The API server.
      namespace: Of the service.
      address: ``host:port`` of its resource manager; empty: the only service.
      request: The job.
      tell: Called with each step.

    Returns:
      The UID of its Job.

    Raises:
      AccessDenied: A permission is missing; all missing ones are listed.
      InvalidRequestError: The service has no such slices, the files are too large or cannot be
        uploaded, or the name is in use.
      PreflightError: The API server cannot be reached, or fails a request.
      ServiceNotFound: There is no such service, or more than one.
      ServiceNotReady: The service cannot become ready by itself.
    """
    with tempfile.TemporaryDirectory(prefix="sps-workdir-") as scratch:
        archive = Path(scratch) / "workdir.tar.gz"
        stop = threading.Event()
        tell(f"packing {request.workdir}")
        try:
            await asyncio.to_thread(_pack, request, archive, stop)
        finally:
            # (An interrupt waits for the thread.)
            stop.set()
        return await _submit(api, namespace, address, request, archive, tell=tell)


def _pack(request: JobRequest, to: Path, stop: threading.Event) -> None:
    with to.open("wb") as file:
        pack(Path(request.workdir), file, BUCKET if request.workdir_bucket else SECRET, stop)


async def _submit(
    api: KubeApi,
    namespace: str,
    address: str,
    request: JobRequest,
    archive: Path,
    *,
    tell: Tell,
) -> str:
    tell("checking the service")
    with before_creating():
        service, priority = await _checked(api, namespace, address, request.session)
        user = await api_user(api) if service.audience else ""
        inputs = proxy_job_inputs(
            dataclasses.replace(request.session, keep_for_s=None),
            service,
            priority=priority,
            namespace=namespace,
            session=str(uuid.uuid4()),
            created_by_pid=0,
            ahead_s=1.0,
            link=None,
            user=user,
        )
        _check_size(request)
        image = _image(request, service, inputs)
        ended = await _ended_job(api, namespace, request.name)
        files: bytes | None = None
        files_url = ""
        if request.workdir_bucket:
            files_url = await upload(archive, request.workdir_bucket, tell)
        else:
            files = await asyncio.to_thread(archive.read_bytes)
        if ended is not None:
            await api.delete(item("jobs", namespace, request.name), uid=ended)
        tell("creating the Job")
        return await _create(
            api, inputs, request, files, submitted_job(inputs, request, image, files_url)
        )


async def _checked(
    api: KubeApi, namespace: str, address: str, session: SessionRequest
) -> tuple[Service, int]:
    """Makes the checks of connect(), and returns the service and the request's priority."""
    preflight = Preflight(api, namespace, address)
    examined = await preflight.examine(session, timeouts.CLUSTER_CHECKS.s)
    if (failure := examined.final_failure) is not None:
        raise failure
    service = examined.service
    if service is None:
        raise ServiceNotReady(f"the service in namespace {namespace} cannot be examined")
    if examined.readiness is not None and examined.readiness.is_hopeless:
        raise examined.readiness.error()
    review = await review_rules(api, namespace)
    # With Google's images as well, a job has a Secret.
    if missing := await missing_permissions(api, namespace, review, needed(ours=True)):
        raise access_denied(missing, namespace)
    return service, preflight.priority


def _check_size(request: JobRequest) -> None:
    size = len(json.dumps(request.to_json()))
    if size > _LARGEST_REQUEST:
        raise InvalidRequestError(
            "env",
            f"{size:,} bytes",
            f"a command and variables of at most {_LARGEST_REQUEST:,} bytes in a cluster",
        )


def _image(request: JobRequest, service: Service, inputs: ProxyJobInputs) -> str:
    if request.image or service.is_ours:
        return request.image or inputs.image
    raise InvalidRequestError(
        "image",
        None,
        "an image with JAX and this package: the service runs Google's images, which have neither",
        hint="`sps submit --image` names one; docs/submit.md says what it needs",
    )


async def _ended_job(api: KubeApi, namespace: str, name: str) -> str | None:
    """Returns the UID of a job of this name that has ended; None: there is none."""
    job = await api.find(item("jobs", namespace, name))
    if job is None:
        return None
    if not is_submitted_job(job) or job_status(job, (), home="kubernetes").is_active:
        raise InvalidRequestError(
            "name", name, f"a name without an active job or connection in namespace {namespace}"
        )
    return str(job["metadata"]["uid"])


async def _create(
    api: KubeApi,
    inputs: ProxyJobInputs,
    request: JobRequest,
    files: bytes | None,
    body: Mapping[str, Any],
) -> str:
    session = dataclasses.replace(request.session, tenant=inputs.tenant)
    of_pods = dataclasses.replace(request, session=session)
    jobs = collection("jobs", inputs.namespace)
    try:
        job: Mapping[str, Any] = await api.create(jobs, body)
    except ApiError as error:
        raise _refusal(error, request, inputs) from error
    uid = str(job["metadata"]["uid"])
    secret = job_secret(inputs, of_pods, files, secrets.token_urlsafe(_TOKEN_BYTES), uid)
    path = item("jobs", inputs.namespace, request.name)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(api.delete, path, uid=uid)
        try:
            await api.create(collection("secrets", inputs.namespace), secret)
        except ApiError as error:
            if error.reason != "AlreadyExists" or not error.may_have_succeeded:
                raise _refusal(error, request, inputs) from error
            # The answer to an earlier try was lost.
        await api.patch(path, submitted_patch(uid))
        undo.pop_all()
    return uid


def _refusal(error: ApiError, request: JobRequest, inputs: ProxyJobInputs) -> SharedPathwaysError:
    if not error.is_final:
        return error
    if error.reason == "AlreadyExists":
        return InvalidRequestError(
            "name", request.name, f"a name without a Job in namespace {inputs.namespace}"
        )
    return create_refused(
        request.name, inputs.namespace, reason=error.reason, message=error.message
    )
