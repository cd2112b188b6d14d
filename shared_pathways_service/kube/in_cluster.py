"""Access to the cluster that this process runs in, by its pod's service account.

Paths and variables: "Accessing the Kubernetes API from a Pod" of the Kubernetes documentation.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.kube.tokens import file_token

__all__ = ["SERVICE_ACCOUNT_DIRECTORY", "in_cluster_access", "is_in_cluster"]

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
#: Where the kubelet mounts the files of a pod's service account.
SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
_SERVICE_ACCOUNT = Path(SERVICE_ACCOUNT_DIRECTORY)


def is_in_cluster(directory: Path = _SERVICE_ACCOUNT) -> bool:
    """Whether this process runs in a pod that has a service account, with files in a directory."""
    return bool(os.environ.get(_HOST)) and (directory / "token").exists()


def in_cluster_access(directory: Path = _SERVICE_ACCOUNT) -> ClusterAccess:
    """Returns access to the cluster of this pod.

    Raises:
      InvalidRequestError: The files cannot be read.
    """
    host, port = os.environ[_HOST], os.environ.get(_PORT) or "443"
    try:
        authority = (directory / "ca.crt").read_bytes()
        namespace = (directory / "namespace").read_text().strip()
        tls = client_tls(authority=authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequestError(
            "service account", str(directory), f"its files, not: {error}"
        ) from error
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        tls=tls,
        tokens=file_token(directory / "token"),
        namespace=namespace,
        name="the cluster of this pod",
    )
