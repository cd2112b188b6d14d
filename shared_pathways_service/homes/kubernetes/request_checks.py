"""Compares a request and this client with a service, before anything is created."""

from __future__ import annotations

import importlib.metadata
import platform

from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state import preflight_checks
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.manifests.image_names import Versions

__all__ = ["request_checks"]


def request_checks(service: Service, request: SessionRequest) -> list[Check]:
    """Makes the checks that need only the service's JobSet and the request."""
    options = request.proxy_options
    client = Versions(jax=importlib.metadata.version("jax"), python=platform.python_version())
    found = [preflight_checks.types_check(service, request.tenant.type_names)]
    check, image = preflight_checks.image_check(service, request.chosen_image)
    found.append(check)
    if image:
        found.append(preflight_checks.jax_check(client, image))
        if options.limits:
            found.append(preflight_checks.limits_check(options, image))
    if options.ffi_targets:
        found.append(preflight_checks.ffi_check(options))
    if options.sidecar and image:
        found.append(preflight_checks.sidecar_check(client, service, image))
    if request.keep_for_s is not None:
        found.append(preflight_checks.keep_for_check(service, request.keep_for_s))
    return [*found, preflight_checks.bucket_check(service, request.gcs_bucket or "")]
