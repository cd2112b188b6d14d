"""The official client reads what was created: a reader with models of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes import client as official

from shared_pathways_service.manifests.names import APP, LABEL_APP
from shared_pathways_service.testing.testbed import Namespace

__all__ = ["is_read_by_the_official_client"]


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


def _without_kind(thing: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in thing.items() if name not in ("kind", "apiVersion")}
