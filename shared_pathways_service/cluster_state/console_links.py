"""Makes links to Google's console for people."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["log_link"]


def log_link(project: str, cluster: str, namespace: str, job: str) -> str:
    """Returns the link to the log of a Job's pods in Google's console; empty without a project.

    Source of the query's form: the public documentation of Cloud Logging (`k8s_container`).
    """
    if not project:
        return ""
    conditions = {
        "resource.type": "k8s_container",
        "resource.labels.cluster_name": cluster,
        "resource.labels.namespace_name": namespace,
        'labels."k8s-pod/job-name"': job,
    }
    query = "\n".join(f'{name}="{value}"' for name, value in conditions.items() if value)
    encoded = quote(query, safe="")
    return f"https://console.cloud.google.com/logs/query;query={encoded}?project={quote(project)}"
