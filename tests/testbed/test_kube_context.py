"""``pytest --kube-context``, as users run it on a cluster of their own, on the testbed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from harness.testbed.clients import KIND, home_of, nothing_left
from harness.testbed.plugin import IMAGES
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from shared_pathways_service.testing.testbed.kubeconfig import CONTEXT

DEADLINE_S = deadline(500.0)


@pytest.mark.parametrize("kind", IMAGES)
def test_the_checks_pass_on_a_cluster_that_is_named(namespace: Namespace, kind: str) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    service = deploy_service(namespace, {KIND: 2}, image=IMAGES[kind])
    # Named, and found.
    address = service.address if kind == "ours" else ""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"),
            *("tests/testbed/test_shared_cluster.py", "tests/testbed/test_googles_images.py"),
            f"--kube-context={CONTEXT}",
            f"--kube-namespace={namespace.name}",
            f"--pathways-service={address}",
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "HOME": home_of(),
            "KUBECONFIG": str(namespace.kubeconfig_of("tenant")),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Tests that need a testbed are left out.
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    assert [line.rpartition("::")[2] for line in passed] == [
        "test_tenant_finds_the_service_and_may_use_it",
        "test_verification_passes",
    ]
    assert "SKIPPED" in done.stdout
    nothing_left(namespace)
