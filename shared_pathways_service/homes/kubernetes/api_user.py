"""Asks the API server who this user is."""

from __future__ import annotations

from shared_pathways_service.homes.kubernetes.error_translation import before_creating
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection

__all__ = ["api_user"]


async def api_user(api: KubeApi) -> str:
    """Returns the name by which the API server knows this user."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with before_creating():
        review = await api.request("POST", collection("selfsubjectreviews"), body=body)
    return str(review["status"]["userInfo"]["username"])
