"""Builds the far end of a resumable link in a proxy's pod.

This project's proxy starts it itself (`link_flags`). Beside Google's proxy it is a native sidecar:
an image with nothing but Python runs an archive from a ConfigMap (ADR 102).
"""

from __future__ import annotations

import base64
import dataclasses
import math
from typing import Any, Final

from shared_pathways_service.api.request_fields import check_image
from shared_pathways_service.constants import LINK_PORT, LOOPBACK, PROXY_PORT
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.jobset_parts import container_ports
from shared_pathways_service.manifests.pod_parts import literal, restricted
from shared_pathways_service.manifests.token_parts import TOKEN_FILE, token_mount

__all__ = [
    "SIDECAR_USER",
    "LinkInputs",
    "archive_data",
    "archive_volume",
    "link_flags",
    "link_sidecar",
    "listening_probe",
]

#: The user and group of the sidecar if the proxy has none: ``nobody`` of most systems.
SIDECAR_USER: Final = 65534
_ARCHIVE_KEY: Final = "link.pyz"
_VOLUME: Final = "sps-link"
_DIRECTORY: Final = "/opt/sps-link"
#: An interpreter has 30 MiB. Each end of a connection holds at most 41 MiB (ADR 101 and 103), so 11
#: full ones fit; JAX's client opens fewer than ten. A link that exceeds it ends without its proxy.
#: Processor time is not limited, as a transfer would wait for it.
_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "64Mi"},
    "limits": {"memory": "512Mi"},
}
#: Seconds for it to listen. It needs nothing for this, least of all the proxy, which starts
#: afterwards: a sidecar that cannot run is noticed before the proxy requests slices.
_START_S: Final = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkInputs:
    """The inputs of the far end of a link.

    Attributes:
      keep_s: Seconds for which it keeps a session without a connection.
      image: The sidecar's image, which has Python 3.11 or later as ``python3``.
    """

    keep_s: float
    image: str

    def __post_init__(self) -> None:
        check_image(self.image, field="link_image")

    @property
    def whole_keep_s(self) -> int:
        """The seconds as a whole number, for flags."""
        return math.ceil(self.keep_s)


def link_flags(link: LinkInputs) -> list[str]:
    """Returns the flags with which this project's proxy starts the far end."""
    return [f"--link_port={LINK_PORT}", f"--link_keep_s={link.whole_keep_s}"]


def link_sidecar(link: LinkInputs, *, user: int) -> dict[str, Any]:
    """Returns the native sidecar (from Kubernetes 1.29 on): it starts before the proxy.

    It meets the `restricted` Pod Security Standard.

    Args:
      link: The inputs.
      user: The user of the pod; 0: none is set.
    """
    user = user or SIDECAR_USER
    return {
        "name": names.LINK_CONTAINER,
        "image": link.image,
        "restartPolicy": "Always",
        "command": ["python3", "-I", f"{_DIRECTORY}/{_ARCHIVE_KEY}"],
        "args": [
            literal(argument)
            for argument in (
                f"--port={LINK_PORT}",
                f"--target={LOOPBACK}:{PROXY_PORT}",
                f"--token_file={TOKEN_FILE}",
                f"--keep_s={link.whole_keep_s}",
                "--bind_address=0.0.0.0",  # (a pod's own address, and a token)
            )
        ],
        "ports": container_ports((LINK_PORT,)),
        "startupProbe": listening_probe(LINK_PORT, _START_S),
        "resources": _RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            **restricted(),
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
        },
        "volumeMounts": [
            {"name": _VOLUME, "mountPath": _DIRECTORY, "readOnly": True},
            token_mount(),
        ],
    }


def listening_probe(port: int, within_s: int) -> dict[str, Any]:
    """Returns a startup probe: a container counts as ready once it listens."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": within_s}


def archive_volume(config_map: str) -> dict[str, Any]:
    """Returns the volume of a ConfigMap of this name."""
    return {"name": _VOLUME, "configMap": {"name": config_map}}


def archive_data(archive: bytes) -> dict[str, str]:
    """Returns the ``binaryData`` of the ConfigMap with the far end's program."""
    return {_ARCHIVE_KEY: base64.b64encode(archive).decode()}
