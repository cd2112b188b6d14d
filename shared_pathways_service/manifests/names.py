"""Defines labels, annotations and other names of objects in a cluster."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

LABEL_APP: Final = "app"
APP: Final = "pathways-proxy"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "shared-pathways-service"
LABEL_USER: Final = "sps.dev/user"
LABEL_TEAM: Final = "sps.dev/team"
LABEL_SESSION: Final = "sps.dev/session"
LABEL_SERVICE: Final = "sps.dev/service"
ANNOTATION_HOST: Final = "sps.dev/host"
ANNOTATION_INSTANCES: Final = "sps.dev/instances"
ANNOTATION_CLIENT_VERSION: Final = "sps.dev/client-version"
ANNOTATION_CREATED_BY_PID: Final = "sps.dev/created-by-pid"
#: What a Job of ours is, if not only a proxy: a submitted job, which has its proxy in its pods.
LABEL_KIND: Final = "sps.dev/kind"
KIND_JOB: Final = "submitted-job"
#: On the Job of a submitted job: its command as JSON, the submitter's directory, and whether
#: `sps cancel` ended it.
ANNOTATION_COMMAND: Final = "sps.dev/command"
ANNOTATION_WORKDIR: Final = "sps.dev/workdir"
ANNOTATION_CANCELLED: Final = "sps.dev/cancelled"
#: On a proxy's Job: seconds by which it outlives the last sign of life of its session.
ANNOTATION_KEEP_FOR: Final = "sps.dev/keep-for-s"
#: On a service's JobSet: its spec as it was sent to the cluster, in JSON; on objects of its page,
#: likewise, all but their metadata.
ANNOTATION_SENT_SPEC: Final = "sps.dev/sent-spec"
#: On a service's JobSet: why it refuses new connections.
ANNOTATION_DRAINING: Final = "sps.dev/draining"
#: On a service's JobSet: the longest ``keep_for`` of its proxies, in seconds.
ANNOTATION_MAX_KEEP_FOR: Final = "sps.dev/max-keep-for-s"
#: On a service's JobSet: the size and the StorageClass of the volume with its state.
ANNOTATION_STATE_SIZE: Final = "sps.dev/state-size"
ANNOTATION_STORAGE_CLASS: Final = "sps.dev/storage-class"
#: On a service's JobSet: it verifies users, by tokens for this audience.
ANNOTATION_AUDIENCE: Final = "sps.dev/identity-audience"
#: On a service's JobSet: the claim for compiled programs of verified users.
ANNOTATION_PROGRAMS: Final = "sps.dev/compiled-programs"
#: On a service's JobSet: where its tenants' programs run, if not in their proxies.
ANNOTATION_ENGINE: Final = "sps.dev/engine"
#: On a service's JobSet: what its executors compute on, if not on CPUs.
ANNOTATION_PLATFORM: Final = "sps.dev/platform"
#: On a service's JobSet: tenants may run Python on its workers' hosts.
ANNOTATION_COLOCATED_PYTHON: Final = "sps.dev/colocated-python"
#: On a service's JobSet: the inputs of its page in the cluster, in JSON.
ANNOTATION_PAGE: Final = "sps.dev/page"
#: On a proxy's pod: who created its Job, and for which team, as the API server has verified it.
ANNOTATION_VERIFIED_USER: Final = "sps.dev/verified-user"
ANNOTATION_VERIFIED_TEAM: Final = "sps.dev/verified-team"
#: Selects every proxy that this package created.
PROXY_SELECTOR: Final = f"{LABEL_APP}={APP},{LABEL_MANAGED_BY}={MANAGED_BY}"

#: Containers and replicated jobs, as Pathways on Cloud names them.
PROXY_CONTAINER: Final = "pathways-proxy"
LINK_CONTAINER: Final = "sps-link"
JOB_CONTAINER: Final = "job"
RM_CONTAINER: Final = "pathways-rm"
WORKER_CONTAINER: Final = "pathways-worker"
HEAD_JOB: Final = "pathways-head"
#: Labels that the JobSet controller adds to its pods.
LABEL_JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
LABEL_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
LABEL_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"

_LABEL_LIMIT: Final = 63
_NOT_IN_LABELS: Final = re.compile(r"[^-A-Za-z0-9_.]+")
_ENDS: Final = "-_."


def label_value(text: str) -> str:
    """Converts a text to a label's value: forbidden characters become ``-``."""
    return _NOT_IN_LABELS.sub("-", text).strip(_ENDS)[:_LABEL_LIMIT].strip(_ENDS)


def is_worker_job(replicated_job: str) -> bool:
    """Whether a replicated job of a service's JobSet has workers."""
    return replicated_job in ("worker", "pathways-worker") or replicated_job.startswith("worker-")


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns an object's labels."""
    return (item.get("metadata") or {}).get("labels") or {}


def bears_session(item: Mapping[str, Any], session: str) -> bool:
    """Whether an object belongs to this session, even if the answer to its creation was lost."""
    return bool(session) and labels_of(item).get(LABEL_SESSION) == session


def instances_text(virtual_slices: Sequence[str]) -> str:
    """Returns slices in the form of the command line: ``tpuv6e:2x2=2``."""
    return ",".join(f"{name}={count}" for name, count in Counter(virtual_slices).items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The owner of a proxy, from the labels and annotations of its Job; empty where one is missing.

    Attributes:
      name: The Job's name.
      instances: e.g. ``tpuv6e:2x2=2``.
    """

    name: str
    user: str
    host: str
    team: str
    service: str
    instances: str

    def __str__(self) -> str:
        who = "@".join(part for part in (self.user, self.host) if part) or self.name
        counts = (part.rpartition("=") for part in self.instances.split(",") if part)
        what = ", ".join(f"{count} x {name}" for name, _, count in counts)
        return f"{who}: {what}" if what else who


def holder_of(job: Mapping[str, Any]) -> Holder:
    """Returns the holder that a proxy's Job names, for resource managers that do not report it."""
    metadata, labels = job.get("metadata") or {}, labels_of(job)
    annotations = metadata.get("annotations") or {}
    return Holder(
        name=str(metadata.get("name", "")),
        user=labels.get(LABEL_USER, ""),
        host=annotations.get(ANNOTATION_HOST, ""),
        team=labels.get(LABEL_TEAM, ""),
        service=labels.get(LABEL_SERVICE, ""),
        instances=annotations.get(ANNOTATION_INSTANCES, ""),
    )
