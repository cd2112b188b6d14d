"""Claims and volumes behave on the testbed as in a cluster, the strict parts above all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.testbed.pods import container, phase, pod
from shared_pathways_service.testing.testbed import Namespace, Object

CLAIMS = "persistentvolumeclaims"


def claim(name: str, **spec: object) -> Object:
    usual = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": {"name": name}, "spec": {**usual, **spec}}


def user(name: str, claim_name: str, script: str, **spec: object) -> Object:
    """A pod that mounts a claim as /data."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}
    main = container(script, volumeMounts=[{"name": "v", "mountPath": "/data"}])
    return pod(name, main, volumes=[volume], **spec)


def event(namespace: Namespace, about: str, words: str) -> str:
    def found(seen: Sequence[Object]) -> str | None:
        texts = [e["message"] for e in seen if e["involvedObject"]["name"] == about]
        return next((text for text in texts if words in text), None)

    return namespace.wait_until("events", found, what=f"{words!r} of {about}")


@pytest.mark.race
def test_a_volume_goes_from_node_to_node_but_is_never_on_two(namespace: Namespace) -> None:
    [other] = namespace.add_nodes({}, cpu_nodes=1)
    first = namespace.nodes[0]
    namespace.create(CLAIMS, claim("disk"))
    holds = user("holds", "disk", "echo kept > /data/file; echo written; sleep 600")
    holds["spec"]["nodeSelector"] = {"kubernetes.io/hostname": first}
    namespace.create("pods", holds)
    namespace.wait_for_pod("holds", lambda p: phase(p) == "Running")
    namespace.wait_for_log("holds", "written")
    reads = user("reads", "disk", "cat /data/file; sleep 600")
    reads["spec"]["nodeSelector"] = {"kubernetes.io/hostname": other}
    namespace.create("pods", reads)
    event(namespace, "reads", "Multi-Attach")
    namespace.delete("pods", "holds")
    namespace.wait_for_pod("reads", lambda p: phase(p) == "Running")
    wait_until("the file of the other node", lambda: namespace.log("reads") == "kept\n")
    [volume] = [
        one
        for one in namespace.testbed.api.items("/api/v1/persistentvolumes")
        if one["spec"]["claimRef"]["namespace"] == namespace.name
    ]
    directory = Path(namespace.testbed.directory) / "volumes" / volume["metadata"]["name"]
    assert directory.is_dir()
    # The claim is in use, and so is not deleted before its pod is.
    namespace.delete(CLAIMS, "disk")
    assert "deletionTimestamp" in namespace.items(CLAIMS)[0]["metadata"]
    namespace.delete("pods", "reads")
    wait_until("the end of the claim", lambda: not namespace.items(CLAIMS))
    wait_until("the end of the volume", lambda: not directory.exists())


def test_a_claim_needs_a_class_that_there_is(namespace: Namespace) -> None:
    for name, storage_class in (("classless", ""), ("unknown", "no-such-class")):
        namespace.create(CLAIMS, claim(name, storageClassName=storage_class))
        namespace.create("pods", user(f"uses-{name}", name, "true"))
        event(namespace, f"uses-{name}", "unbound immediate PersistentVolumeClaims")
    event(namespace, "unknown", '"no-such-class" not found')
    assert {one["status"]["phase"] for one in namespace.items(CLAIMS)} == {"Pending"}


def test_a_volume_grows(namespace: Namespace) -> None:
    namespace.create(CLAIMS, claim("grows"))
    namespace.create("pods", user("user", "grows", "sleep 600"))
    namespace.wait_for_pod("user", lambda p: phase(p) == "Running")
    grown = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    namespace.testbed.api.patch(namespace.path(CLAIMS, "grows"), grown)
    namespace.wait_until(
        CLAIMS,
        lambda found: found[0]["status"]["capacity"]["storage"] == "2Gi" or None,
        what="larger volume",
    )
