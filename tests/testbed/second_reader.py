"""The official client reads what was created: a reader with models of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubernetes import client as official

from shared_pathways_service.manifests.names import APP, LABEL_APP
from shared_pathways_service.testing.testbed import Namespace

__all__ = ["are_read_by_the_official_client", "is_read_by_the_official_client"]

#: Of each resource: the API of the official client, its method that lists, and the fields to
#: compare. (Of a Lease's, times change.)
_LISTS: Final = {
    "configmaps": (official.CoreV1Api, "list_namespaced_config_map", ("data", "binaryData")),
    "persistentvolumeclaims": (
        official.CoreV1Api,
        "list_namespaced_persistent_volume_claim",
        ("spec", "status"),
    ),
    "coordination.k8s.io/v1/leases": (
        official.CoordinationV1Api,
        "list_namespaced_lease",
        ("spec.leaseDurationSeconds", "spec.holderIdentity"),
    ),
    "serviceaccounts": (official.CoreV1Api, "list_namespaced_service_account", ()),
    "rbac.authorization.k8s.io/v1/roles": (
        official.RbacAuthorizationV1Api,
        "list_namespaced_role",
        ("rules",),
    ),
    "rbac.authorization.k8s.io/v1/rolebindings": (
        official.RbacAuthorizationV1Api,
        "list_namespaced_role_binding",
        ("roleRef", "subjects"),
    ),
}


def reader(namespace: Namespace) -> official.ApiClient:
    """Returns the official client, as the administrator."""
    configuration = official.Configuration(host=namespace.testbed.server)
    configuration.ssl_ca_cert = str(namespace.testbed.authority)
    configuration.api_key = {"authorization": f"Bearer {namespace.testbed.admin.token}"}
    return official.ApiClient(configuration)


def is_read_by_the_official_client(namespace: Namespace, name: str) -> None:
    """Compares what a second reader, with models of its own, finds of the created objects."""
    with reader(namespace) as client:
        jobs, core = official.BatchV1Api(client), official.CoreV1Api(client)
        job = jobs.read_namespaced_job(name, namespace.name)
        assert job.metadata.labels[LABEL_APP] == APP
        assert job.spec.active_deadline_seconds > 0
        selector = f"batch.kubernetes.io/job-name={name}"
        [pod] = core.list_namespaced_pod(namespace.name, label_selector=selector).items
        assert [owner.uid for owner in pod.metadata.owner_references] == [job.metadata.uid]
        assert pod.status.phase == "Running"
        assert all(status.ready for status in pod.status.container_statuses)
        secrets = core.list_namespaced_secret(
            namespace.name, label_selector=f"{LABEL_APP}={APP}"
        ).items
        owned = {
            secret.metadata.name
            for secret in secrets
            if [owner.uid for owner in secret.metadata.owner_references] == [job.metadata.uid]
        }
        assert owned == {volume.secret.secret_name for volume in pod.spec.volumes if volume.secret}
        # A round trip through its models loses no field.
        for read, path in ((job, "batch/v1/jobs"), (pod, "pods")):
            ours = next(
                thing
                for thing in namespace.items(path)
                if thing["metadata"]["uid"] == read.metadata.uid
            )
            assert _without_kind(client.sanitize_for_serialization(read))["spec"] == ours["spec"]
        found = official.CustomObjectsApi(client).list_namespaced_custom_object(
            "jobset.x-k8s.io", "v1alpha2", namespace.name, "jobsets"
        )
        [jobset] = found["items"]
        names = [part["name"] for part in jobset["spec"]["replicatedJobs"]]
        assert names == ["pathways-head", "worker"]


def are_read_by_the_official_client(namespace: Namespace, resource: str, *names: str) -> None:
    """Compares what a second reader, with models of its own, finds of these objects.

    Args:
      namespace: Where they are.
      resource: One of `_LISTS`.
      names: Of the objects, which exist.
    """
    kind, method, fields = _LISTS[resource]
    ours = {one["metadata"]["name"]: one for one in namespace.items(resource)}
    with reader(namespace) as client:
        listed = getattr(kind(client), method)(namespace.name).items
        read = {one.metadata.name: client.sanitize_for_serialization(one) for one in listed}
    for name in names:
        for field in ("uid", "labels", "ownerReferences"):
            assert read[name]["metadata"].get(field) == ours[name]["metadata"].get(field)
        for path in fields:
            assert _field(read[name], path) == _field(ours[name], path), (name, path)


def _field(thing: Mapping[str, Any], path: str) -> Any:
    found: Any = thing
    for name in path.split("."):
        found = (found or {}).get(name)
    return found


def _without_kind(thing: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in thing.items() if name not in ("kind", "apiVersion")}
