"""Mounts a bucket as a directory of a pod, with GKE's Cloud Storage FUSE driver.

Source: GKE's public documentation of that driver (``gcsfuse.csi.storage.gke.io``). The pod's
service account must be allowed to read and write the bucket.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ANNOTATIONS", "MOUNT_PATH", "bucket_mount", "bucket_volume"]

#: Makes the driver's webhook add its own container to the pod.
ANNOTATIONS: Final = {"gke-gcsfuse/volumes": "true"}
#: The directory of the bucket.
MOUNT_PATH: Final = "/gcs"
_VOLUME: Final = "gcs"
_SCHEME: Final = "gs://"


def bucket_volume(bucket: str) -> dict[str, Any]:
    """Returns the volume of ``gs://BUCKET`` or of a folder in it."""
    name, _, folder = bucket.removeprefix(_SCHEME).partition("/")
    options = ["implicit-dirs"]
    if folder := folder.strip("/"):
        options.append(f"only-dir={folder}")
    return {
        "name": _VOLUME,
        "csi": {
            "driver": "gcsfuse.csi.storage.gke.io",
            "volumeAttributes": {"bucketName": name, "mountOptions": ",".join(options)},
        },
    }


def bucket_mount() -> dict[str, str]:
    """Returns the mount of the volume in a container."""
    return {"name": _VOLUME, "mountPath": MOUNT_PATH}
