"""``pytest --kube-context``, as users run it on a cluster of their own, on the testbed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from harness.programs import sps_json
from harness.testbed.clients import KIND, home_of, nothing_left
from harness.testbed.plugin import ANY_IMAGES, IMAGES
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from shared_pathways_service.testing.testbed.kubeconfig import CONTEXT

DEADLINE_S = deadline(500.0)
#: The tests that run for each kind. Nearly all their time is that of `sps verify`, which does the
#: same on both: `tests/cli/test_verify.py` has all its checks on a service of ours without a
#: cluster, and the folders `link` and `deaths` have what it does to tenants on one of ours in a
#: cluster.
CHECKS = {
    "ours": ["test_tenant_finds_the_service_and_may_use_it"],
    "googles": ["test_tenant_finds_the_service_and_may_use_it", "test_verification_passes"],
}


@pytest.mark.parametrize("kind", ANY_IMAGES)
def test_the_checks_pass_on_a_cluster_that_is_named(
    namespace: Namespace, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    service = deploy_service(namespace, {KIND: 2}, image=IMAGES[kind])
    monkeypatch.setenv("HOME", home_of())
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    # Named, and found.
    address = service.address if kind == "ours" else ""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"),
            *("tests/testbed/test_shared_cluster.py", "tests/testbed/test_googles_images.py"),
            *("-k", " or ".join(["googles_images", *CHECKS[kind]])),
            f"--kube-context={CONTEXT}",
            f"--kube-namespace={namespace.name}",
            f"--pathways-service={address}",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Tests that need a testbed are left out.
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    assert [line.rpartition("::")[2] for line in passed] == CHECKS[kind]
    assert "SKIPPED" in done.stdout
    if kind == "ours":
        # The first check of `sps verify`, with the named address.
        place = (f"--context={CONTEXT}", f"--namespace={namespace.name}")
        told = sps_json("doctor", *place, f"--pathways_service={address}")
        assert all(check["outcome"] != "failed" for check in told["checks"]), told
    nothing_left(namespace)
