"""Finds a cluster of Google Kubernetes Engine by its name.

Fields: ``projects.locations.clusters`` of the Kubernetes Engine API, v1.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from shared_pathways_service.errors import AccessDenied, InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.command_place import CommandPlace
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.kube.tokens import TokenSource
from shared_pathways_service.patience import timeouts

__all__ = ["ENDPOINT_VARIABLE", "gke_access"]

#: gcloud's variable for the address of the Kubernetes Engine API, and the default address.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"
_ENDPOINT = "https://container.googleapis.com/"


async def gke_access(choice: ClusterChoice) -> ClusterAccess:
    """Finds a cluster, and an endpoint of it that answers: by DNS name, else public, else private.

    Raises:
      InvalidRequestError: There is no such cluster.
      AccessDenied: There are no credentials, or they do not permit the lookup.
      ApiUnreachable: No endpoint of the cluster answers.
    """
    tokens = GoogleUser().tokens
    described = await _look_up(choice, tokens)
    ways = _ways(choice, described, tokens)
    failures: list[str] = []
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(_failure(way)) for way in ways]
        for way, trying in zip(ways, tries, strict=True):
            failure = await trying
            if not failure:
                for other in tries:
                    other.cancel()
                return way
            failures.append(f"{way.server}: {failure}")
    raise ApiUnreachable(
        f"no endpoint of cluster {choice.cluster} ({described.get('status', 'of unknown state')})"
        f" answers: {'; '.join(failures) or 'it has none'}",
        server=choice.cluster,
        cause="; ".join(failures),
        hint="allow external traffic to its DNS endpoint, or connect from inside its network",
    )


async def _look_up(choice: ClusterChoice, tokens: TokenSource) -> Mapping[str, Any]:
    server = os.environ.get(ENDPOINT_VARIABLE, _ENDPOINT).rstrip("/")
    access = ClusterAccess(
        server=server,
        tls=client_tls() if server.startswith("https://") else None,
        tokens=tokens,
        name="Kubernetes Engine API",
    )
    project = f"/v1/projects/{quote(choice.project, safe='')}"
    place = f"{project}/locations/{quote(choice.region, safe='')}"
    async with KubeApi(access) as api:
        try:
            path = f"{place}/clusters/{quote(choice.cluster, safe='')}"
            return await api.get(path, timeout_s=timeouts.GKE_LOOK_UP.s)
        except AccessDenied as error:
            raise _denied(choice, error) from error
        except ApiError as error:
            if error.status != 404:
                raise
            found = await _clusters(api, project)
            raise InvalidRequestError(
                "cluster",
                choice.cluster,
                f"a cluster of project {choice.project} in {choice.region}"
                f" (there are: {', '.join(found) or 'none'})",
            ) from error


async def _clusters(api: KubeApi, project: str) -> list[str]:
    """Returns the project's clusters with their regions, for an error message."""
    try:
        answer = await api.get(f"{project}/locations/-/clusters", timeout_s=timeouts.GKE_LOOK_UP.s)
    except SharedPathwaysError as error:
        return [f"unknown: {error.message}"]
    return [f"{c['name']} in {c['location']}" for c in answer.get("clusters") or ()]


def _denied(choice: ClusterChoice, error: AccessDenied) -> AccessDenied:
    if error.verb == "connect":
        return error
    return AccessDenied(
        f"may not look up cluster {choice.cluster} of project {choice.project}: {error.message}",
        verb="get",
        resource="container.clusters",
        rule=f"roles/container.clusterViewer on project {choice.project}",
    )


def _ways(
    choice: ClusterChoice, described: Mapping[str, Any], tokens: TokenSource
) -> Sequence[ClusterAccess]:
    endpoints = described.get("controlPlaneEndpointsConfig") or {}
    by_name = endpoints.get("dnsEndpointConfig") or {}
    by_address = endpoints.get("ipEndpointsConfig") or {}
    private = described.get("privateClusterConfig") or {}
    name = by_name.get("endpoint") if by_name.get("allowExternalTraffic") else ""
    addresses = [
        by_address.get("publicEndpoint") or private.get("publicEndpoint"),
        described.get("endpoint"),
        by_address.get("privateEndpoint") or private.get("privateEndpoint"),
    ]
    common = ClusterAccess(
        server="",
        tls=None,
        tokens=tokens,
        name=f"cluster {choice.cluster} in {choice.region}",
        project=choice.project,
        commands=CommandPlace(cluster=choice.cluster, project=choice.project, region=choice.region),
    )
    ways = []
    if name:
        # Its certificate is signed by a public authority.
        ways.append(dataclasses.replace(common, server=f"https://{name}", tls=client_tls()))
    authority = (described.get("masterAuth") or {}).get("clusterCaCertificate") or ""
    own = client_tls(authority=base64.b64decode(authority))
    known = dict.fromkeys(address for address in addresses if address)
    return [*ways, *(dataclasses.replace(common, server=f"https://{a}", tls=own) for a in known)]


async def _failure(way: ClusterAccess) -> str:
    """Returns why the endpoint cannot be used; empty if it can."""
    async with KubeApi(way) as api:
        try:
            await api.get("/version", timeout_s=timeouts.GKE_ENDPOINT.s)
        except ApiUnreachable as error:
            return error.cause
        except SharedPathwaysError as error:
            return error.message
    return ""
