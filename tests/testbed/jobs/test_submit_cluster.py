"""`sps submit` in a cluster: work that outlives its submitter, as an ordinary tenant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.object_stores import BUCKET, object_store
from harness.programs import DEADLINE_S, sps, sps_failing, sps_json
from harness.testbed.clients import KIND, nothing_left, tenant
from harness.testbed.kills import tenants
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.submission import submit
from shared_pathways_service.testing.testbed import DeployedService

#: Uses its slices, its files and its variables.
PROGRAM = """
import os, sys
import jax, jax.numpy as jnp
import mine
x = jax.device_put(jnp.arange(float(1 << 20)), jax.devices()[0])
shared = os.environ["IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"]
assert "sps-arrays" in os.path.realpath(shared)
print("computes", mine.VALUE, float(x[3]), os.environ["MY_SECRET"][::-1], flush=True)
sys.exit(int(os.environ.get("MY_EXIT", "0")))
"""
ENDLESS = """
import os, time
weights = os.path.getsize("weights") if os.path.exists("weights") else 0
print(f"runs, attempt {os.environ['SPS_JOB_ATTEMPT']}, {weights} bytes", flush=True)
while os.environ["SPS_JOB_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


@pytest.fixture
def place(service: DeployedService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its tenant."""
    for name, value in tenant(service.namespace).items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={service.namespace.name}"]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A directory with a program, and a file that git ignores."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "mine.py").write_text("VALUE = 42")
    (tmp_path / ".gitignore").write_text("*.bin\n/large/\n")
    (tmp_path / "large.bin").write_bytes(b"\0" * 1_000_000)
    return tmp_path


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """Runs an object store; gives the variables that lead to it, which this process has, too."""
    with object_store("gs") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield variables


def listed(name: str, place: list[str]) -> dict[str, Any]:
    [found] = [item for item in sps_json("list", *place) if item["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_job_from_its_submission_to_its_end(
    service: DeployedService,
    place: list[str],
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    name = sps(
        *("submit", "--env=MY_SECRET", "--env=MY_EXIT=7", f"--workdir={workdir}", *place),
        *("--", "python3", "train.py"),
    ).stdout.strip()
    assert name.startswith("train-")
    code, err = sps_failing("wait", name, *place)
    assert (code, err) == (7, f"sps: {name}: failed: exit code 7\n"), (
        service.namespace.diagnostics()
    )
    assert "computes 42 3.0 2retnuh" in sps("logs", name, "-f", *place).stdout
    job = listed(name, place)["job"]
    assert (job["state"], job["exit_code"], job["attempt"]) == ("failed", 7, 1)
    assert job["started"] < job["ended"]
    # Neither the slices are held any longer, nor is the secret in an object but the Secret.
    wait_until("the end of the tenant", lambda: not tenants(service))
    objects = [service.namespace.items(kind) for kind in ("batch/v1/jobs", "pods", "events")]
    assert "hunter2" not in json.dumps(objects)
    sps("delete", name, *place)
    assert sps_failing("logs", name, *place)[0] == 3
    nothing_left(service.namespace)


# (gcsfs sends what is smaller than 5 MiB as one piece of bytes.)
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_jobs_are_retried_queued_and_cancelled(
    service: DeployedService, place: list[str], workdir: Path, store: Mapping[str, str]
) -> None:
    namespace = service.namespace
    large = workdir / "large"
    large.mkdir()
    (large / "weights").write_bytes(os.urandom(1_000_000))
    where: dict[str, Any] = {
        "context": "testbed",
        "namespace": namespace.name,
        "expected_tpu_instances": {KIND: 2},
    }
    command = ["python3", "-c", ENDLESS]
    first = submit(
        command,
        name="first",
        retries=1,
        workdir=large,
        workdir_bucket=f"gs://{BUCKET}/jobs",
        env=store,
        **where,
    )
    wait_until("the program", lambda: first.status().state == "running")
    with pytest.raises(InvalidRequestError, match="active job") as taken:
        submit(command, name="first", workdir=workdir, **where)
    assert taken.value.field == "name"
    second = submit(command, workdir=workdir, **where)
    wait_until("the queue", lambda: second.name in tenants(service))
    assert second.status().state == "queued"

    # Its pod is deleted: the next in the queue gets the slice meanwhile.
    [pod] = namespace.items("pods", labelSelector="batch.kubernetes.io/job-name=first")
    namespace.delete("pods", pod["metadata"]["name"])
    wait_until("the next program", lambda: second.status().state == "running")
    cancelled = second.cancel()
    assert (cancelled.state, cancelled.is_active) == ("cancelled", False)
    assert not namespace.items("pods", labelSelector=f"batch.kubernetes.io/job-name={second.name}")
    assert sps_failing("wait", second.name, *place)[0] == 143

    retried = first.wait(DEADLINE_S)
    assert (retried.state, retried.attempt, retried.exit_code) == ("succeeded", 2, 0)
    assert "runs, attempt 2, 1000000 bytes" in first.logs()
    assert "runs, attempt 2, 1000000 bytes\n" in sps("attach", "first", *place).stdout
    for job in (first, second):
        sps("delete", job.name, *place)
    nothing_left(namespace)


def test_a_missing_permission_is_reported_before_anything_is_made(
    service: DeployedService, place: list[str], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = [one for one in needed(ours=True) if str(one) != "create secrets"]
    service.namespace.user("poor", granting_rules(rest))
    monkeypatch.setenv("KUBECONFIG", str(service.namespace.kubeconfig_of("poor")))
    code, err = sps_failing("submit", f"--workdir={workdir}", *place, "--", "true")
    assert code == 5
    assert "you may not create secrets" in err
    nothing_left(service.namespace)
