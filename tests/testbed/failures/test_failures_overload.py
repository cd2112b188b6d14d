"""An API server that is overloaded: it refuses most requests for a while, or answers late."""

from __future__ import annotations

import collections
import contextlib
import itertools
import re
from collections.abc import Iterator

import pytest

from harness.patience import patience
from harness.programs import Program, program
from harness.testbed.clients import PRELUDE, deployed, nothing_left, tenant
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from tests.testbed.failing import created, failure
from tests.testbed.faulty_way import Fault, Judge, faulty_way

CLIENT = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, timeout=600) as connection:
    import jax.numpy as jnp
    say("serving", value=float(jnp.ones(3).sum()), name=connection.proxy_job_name)
    wait_for("leave")
say("left")
"""


@contextlib.contextmanager
def client_behind(namespace: Namespace, judge: Judge) -> Iterator[Program]:
    """Runs the client program, whose kubeconfig leads to the API server by a faulty way."""
    user, testbed = namespace.user("tenant"), namespace.testbed
    variables = dict(tenant(namespace))
    path = testbed.directory / f"{namespace.name}-faulty.kubeconfig"
    with faulty_way(testbed, judge) as url:
        write_kubeconfig(path, url, testbed.authority, user, namespace=namespace.name)
        variables["KUBECONFIG"] = str(path)
        with program(PRELUDE + CLIENT, env=variables) as running:
            yield running


def assert_serves_and_leaves(namespace: Namespace, running: Program) -> None:
    """Lets the client compute and leave, with one proxy, of which nothing is left."""
    serving = running.expect("serving")
    assert serving["value"] == 3.0
    jobs = namespace.items("batch/v1/jobs", labelSelector="app=pathways-proxy")
    assert [job["metadata"]["name"] for job in jobs] == [serving["name"]]
    running.tell("leave")
    running.expect("left")
    assert running.wait() == 0
    nothing_left(namespace)


@pytest.mark.timeout(900)
def test_a_storm_of_refusals_costs_nothing_but_time(namespace: Namespace) -> None:
    deployed(namespace, 1)
    refusals = itertools.cycle(
        [
            Fault(status=429, retry_after_s=1),
            Fault(status=503),
            Fault(status=500),
            Fault(status=429),
            Fault(status=504),
            Fault(status=502, retry_after_s=1),
        ]
    )
    tries: collections.Counter[str] = collections.Counter()

    def judge(method: str, path: str) -> Fault | None:
        request = f"{method} {path.partition('?')[0]}"
        tries[request] += 1
        # Of each three requests for the same thing, two are refused.
        return next(refusals) if tries[request] % 3 else None

    with client_behind(namespace, judge) as running:
        assert_serves_and_leaves(namespace, running)
    jobs = namespace.path("batch/v1/jobs")
    assert tries[f"POST {jobs}"] == 3
    assert any(request.endswith("/portforward") for request in tries)


@pytest.mark.timeout(900)
@pytest.mark.thorough
def test_answers_that_take_from_2_to_20_seconds(namespace: Namespace) -> None:
    deployed(namespace, 1)
    # (Halved, as all time-outs of the client are: those of more than 15 seconds are given up, and
    # asked for again. On a busy machine they would not be, if the client chose its time-outs.)
    half = 0.5
    late = {"POST jobs": 20.0, "POST secrets": 12.0, "DELETE jobs": 20.0}
    delays: list[float] = []
    tries: collections.Counter[str] = collections.Counter()

    def judge(method: str, path: str) -> Fault | None:
        resource = path.partition("?")[0].rpartition(f"/namespaces/{namespace.name}/")[2]
        request = f"{method} {resource.partition('/')[0]}"
        tries[request] += 1
        delay_s = late.pop(request, 2.0)
        delays.append(delay_s)
        return Fault(delay_s=delay_s * half)

    with patience(half), client_behind(namespace, judge) as running:
        assert_serves_and_leaves(namespace, running)
    assert not late
    assert {2.0, 12.0, 20.0} <= set(delays)
    assert tries["POST jobs"] > 1
    assert tries["DELETE jobs"] > 1


def test_an_api_server_that_refuses_all(namespace: Namespace) -> None:
    deployed(namespace, 1)
    user, testbed = namespace.user("tenant"), namespace.testbed
    path = testbed.directory / f"{namespace.name}-overloaded.kubeconfig"
    with faulty_way(testbed, lambda _method, _path: Fault(status=429, retry_after_s=1)) as url:
        write_kubeconfig(path, url, testbed.authority, user, namespace=namespace.name)
        # (It is asked until the time is over.)
        error = failure(namespace, ServiceNotReady, kubeconfig=path, timeout=20.0)
    assert re.search(r"was not ready within 20 s: .*429", error.message), error.message
    assert created(namespace) == []
    nothing_left(namespace)
