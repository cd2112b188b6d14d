"""The API server does what it is asked, and its answer is lost."""

from __future__ import annotations

import pytest

from harness.programs import program
from harness.testbed.clients import PRELUDE, deployed, nothing_left, tenant
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from tests.testbed.failing import created
from tests.testbed.faulty_way import Fault, faulty_way

pytestmark = pytest.mark.race

CLIENT = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1},
                proxy_job_name="isc-proxy-once") as connection:
    import jax.numpy as jnp
    say("serving", value=float(jnp.ones(3).sum()))
    wait_for("leave")
say("left")
"""


def test_a_create_whose_answer_is_lost_finds_its_own_job(namespace: Namespace) -> None:
    deployed(namespace, 1)
    jobs, secrets = namespace.path("batch/v1/jobs"), namespace.path("secrets")
    to_lose = [f"POST {jobs}", f"POST {secrets}", f"DELETE {jobs}/isc-proxy-once"]
    lost: list[str] = []

    def judge(method: str, path: str) -> Fault | None:
        request = f"{method} {path}"
        if request not in to_lose or request in lost:
            return None
        lost.append(request)
        return Fault(loses_answer=True)

    user, testbed = namespace.user("tenant"), namespace.testbed
    with faulty_way(testbed, judge) as url:
        variables = dict(tenant(namespace))
        path = testbed.directory / f"{namespace.name}-lossy.kubeconfig"
        write_kubeconfig(path, url, testbed.authority, user, namespace=namespace.name)
        variables["KUBECONFIG"] = str(path)
        with program(PRELUDE + CLIENT, env=variables) as running:
            assert running.expect("serving")["value"] == 3.0
            assert len(namespace.items("batch/v1/jobs", labelSelector="app=pathways-proxy")) == 1
            running.tell("leave")
            running.expect("left")
            assert running.wait() == 0
        assert sorted(lost) == sorted(to_lose)
    nothing_left(namespace)
    asked = [(entry.verb, entry.resource, entry.code) for entry in created(namespace)]
    assert asked == [
        ("create", "jobs", 201),
        ("create", "jobs", 409),
        ("create", "secrets", 201),
        ("create", "secrets", 409),
        ("delete", "jobs", 200),
        ("delete", "jobs", asked[-1][2]),
    ]
    # Gone already, or on its way.
    assert asked[-1][2] in (200, 404)
