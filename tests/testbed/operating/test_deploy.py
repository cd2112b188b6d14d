"""`sps deploy`, `upgrade` and `undeploy`, by users who may do what is rendered, and no more."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S, program, sps, sps_failing, sps_json, sps_running
from harness.session_requests import job_inputs
from harness.testbed.clients import KIND, PRELUDE, nothing_left
from shared_pathways_service.cli.commands.clusters import upgrade
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.cluster_state.service_reading import difference, recorded_spec
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.lease_parts import LEASE_VARIABLE
from shared_pathways_service.manifests.names import ANNOTATION_AUDIENCE, ANNOTATION_DRAINING
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import (
    record_spec,
    service_address,
    service_jobset,
)
from shared_pathways_service.operations import deployment
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import (
    OUR_SERVER_IMAGE,
    DeployedService,
)
from tests.testbed.roles import prepare_verification, rendered_user

pytestmark = pytest.mark.race

JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
RACK = "spec.replicatedJobs[worker].template.spec.template.spec.nodeSelector.rack"
HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, jax.numpy as jnp
    kept = jnp.arange(8.0) + 1
    say("holds", name=connection.proxy_job_name, sum=float(kept.sum()))
    wait_for("go on")
    say("went on", sum=float((kept * 2).sum()), devices=len(jax.devices()))
    wait_for("leave")
"""
LATECOMER = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.ServiceNotReady as error:
    say("refused", message=str(error))
"""


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its operator."""
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    for name, value in rendered_user(namespace, "operator").items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={namespace.name}"]


def jobset(namespace: Namespace, name: str) -> Mapping[str, Any]:
    return namespace.testbed.api.get(namespace.path(JOBSETS, name))


def test_a_service_comes_serves_is_upgraded_and_goes(
    namespace: Namespace, place: list[str]
) -> None:
    image = f"--server-image={OUR_SERVER_IMAGE}"
    prepare_verification(namespace)
    kept = ("--verify-users", "--compiled-programs")
    code, err = sps_failing("deploy", "pw", f"--slices={KIND}=2", image, *kept, *place)
    assert code == 1
    assert "has no PersistentVolumeClaim pw-compiled-programs" in err
    made = sps("deploy", "pw", f"--slices={KIND}=2", image, *place)
    assert jobset(namespace, "pw")["metadata"]["annotations"][ANNOTATION_AUDIENCE]
    assert made.stdout == f"{service_address('pw')}\n"
    assert "pw: 2/2 slices are ready" in made.stderr
    assert f'pathways_service="{service_address("pw")}"' in made.stderr
    code, err = sps_failing("deploy", "pw", f"--slices={KIND}=1", image, *place)
    assert code == 2
    assert "sps upgrade pw" in err
    # Two that wait, as one may: nothing is changed that is so already.
    assert not sps_json("upgrade", "pw", image, *place)["changed"]

    tenant = {**os.environ, **rendered_user(namespace, "tenant")}
    with program(PRELUDE + HOLDER, env=tenant) as holder:
        held = holder.expect("holds")
        # The service outlives its head, and that costs its tenant nothing.
        service = DeployedService(namespace, "pw")
        before = service.head["metadata"]
        namespace.delete("pods", before["name"])
        service.wait_for_head(other_than=before["uid"])
        sps("status", "--wait=90", *place)
        holder.tell("go on")
        assert holder.expect("went on")["sum"] == 2 * held["sum"]

        # Who is in it is named, and nothing is taken away.
        for words in (("undeploy", "pw"), ("upgrade", "pw", f"--slices={KIND}=1")):
            code, err = sps_failing(*words, *place)
            assert code == 4
            assert held["name"] in err
        uid = jobset(namespace, "pw")["metadata"]["uid"]
        metadata = jobset(namespace, "pw")["metadata"]
        assert ANNOTATION_DRAINING not in metadata.get("annotations", {})

        shrink = ("upgrade", "pw", f"--slices={KIND}=1", "--state-size=0")
        with sps_running(*shrink, "--drain-timeout=170", "--json", *place) as upgrading:
            assert upgrading.stderr
            assert upgrading.stdout
            assert held["name"] in upgrading.stderr.readline()
            with program(PRELUDE + LATECOMER, env=tenant) as latecomer:
                assert "being upgraded" in latecomer.expect("refused")["message"]
                assert latecomer.wait() == 0
            holder.tell("leave")
            assert holder.wait() == 0
            told = json.loads(upgrading.stdout.read())
            assert upgrading.wait(DEADLINE_S) == 0, upgrading.stderr.read()
    assert (told["changed"], told["ready"], told["slices"]) == (True, 1, {KIND: 1})
    now = jobset(namespace, "pw")
    assert now["metadata"]["uid"] != uid
    # Without its volume it has a Lease.
    assert LEASE_VARIABLE in json.dumps(now["spec"])
    nothing_left(namespace)

    assert sps_json("undeploy", "pw", *place)["deleted"]
    assert namespace.items(JOBSETS) == []
    assert namespace.items("pods") == []
    assert sps_failing("undeploy", "pw", *place)[0] == 3
    assert sps_failing("upgrade", "pw", *place)[0] == 3


def on_rack(changed: Mapping[str, Any]) -> None:
    """Changes the JobSet, as an operator may by hand."""
    workers = changed["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    workers["nodeSelector"]["rack"] = "7"


def of_another_release(inputs: ServiceInputs) -> dict[str, Any]:
    """Returns the JobSet as a release deployed it that knew no termination message policy."""
    made = service_jobset(inputs)
    head = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    del head["containers"][0]["terminationMessagePolicy"]
    record_spec(made)
    return made


def test_a_manifest_of_another_release_is_replaced_and_a_manual_change_is_not(
    namespace: Namespace, place: list[str]
) -> None:
    # A head has its node to itself.
    namespace.add_nodes({}, cpu_nodes=1)
    policy = "spec.template.spec.containers[pathways-rm].terminationMessagePolicy"
    for name in ("earlier", "edited"):
        inputs = ServiceInputs(
            name=name, namespace=namespace.name, instances={KIND: 1}, image=OUR_SERVER_IMAGE
        )
        made = of_another_release(inputs)
        if name == "edited":
            on_rack(made)
        namespace.create(JOBSETS, made)

    code, err = sps_failing("upgrade", "edited", *place)
    assert code == 2
    assert f"the JobSet edited differs at {RACK} from what was deployed" in err
    assert "changed by hand" in err
    assert "the cluster's defaults have changed" in err
    assert "rack" in json.dumps(jobset(namespace, "edited")["spec"])

    shown = sps("upgrade", "earlier", "--dry-run", *place)
    assert "this release deploys earlier with another manifest" in shown.stderr
    assert policy in shown.stderr
    uid = jobset(namespace, "earlier")["metadata"]["uid"]
    with sps_running("upgrade", "earlier", "--json", *place) as upgrading:
        out, err = upgrading.communicate(timeout=DEADLINE_S)
    assert json.loads(out)["changed"] is True, err
    assert policy in err
    now = jobset(namespace, "earlier")
    assert now["metadata"]["uid"] != uid
    assert "terminationMessagePolicy" in json.dumps(recorded_spec(now))
    again = sps("upgrade", "earlier", *place)
    assert again.stdout == "earlier already has these settings\n"
    assert "another manifest" not in again.stderr

    assert sps_json("upgrade", "edited", "--discard-changes", *place)["changed"]
    assert "rack" not in json.dumps(jobset(namespace, "edited")["spec"])


def test_an_unready_service_is_reported_and_stays(
    namespace: Namespace, place: list[str], tmp_path: Path
) -> None:
    image = f"--server-image={OUR_SERVER_IMAGE}"
    # (The time that a busy machine may need for the slices that have nodes.)
    words = ("deploy", "big", f"--slices={KIND}=3", image, "--timeout=20")
    code, err = sps_failing(*words, *place)
    assert code == 3
    assert "2 of 3 slices are ready" in err
    assert "no node takes it" in err
    assert jobset(namespace, "big")["spec"]["replicatedJobs"]
    waiting, undeploying = re.findall("`(.*?)`", err)
    assert waiting.endswith(f"--pathways-service={service_address('big')}")
    _paste(undeploying, tmp_path)
    assert namespace.items(JOBSETS) == []

    for wrong, said in (
        ([f"--slices={KIND}=1", "--priority-class=urgent"], "PriorityClasses"),
        (["--slices=tpuv6e:3x3=1"], "2x4"),
        ([], "--slices"),
        ([f"--slices={KIND}=1", "--server-arg=--node_type=x"], "--node_type"),
    ):
        code, err = sps_failing("deploy", "wrong", *wrong, *place)
        assert code == 2, err
        assert said in err
    assert namespace.items(JOBSETS) == []


def _paste(command: str, directory: Path) -> None:
    """Runs a command of a message in a shell that knows no cluster."""
    program = directory / "sps"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shared_pathways_service.cli "$@"\n')
    program.chmod(0o755)
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PATH": path, "KUBECONFIG": os.devnull},
        check=True,
        timeout=DEADLINE_S,
        cwd=REPOSITORY,
    )


def test_manual_changes_are_kept_and_tenants_end_on_request(
    namespace: Namespace, place: list[str]
) -> None:
    inputs = ServiceInputs(
        name="pw", namespace=namespace.name, instances={KIND: 1}, image=OUR_SERVER_IMAGE
    )
    changed = service_jobset(inputs)
    on_rack(changed)
    uid = namespace.create(JOBSETS, changed)["metadata"]["uid"]
    code, err = sps_failing("upgrade", "pw", "--max-slice-restarts=3", *place)
    assert code == 2
    assert f"the JobSet pw differs at {RACK} from what this release deploys" in err
    assert "by hand" in err
    assert "another release" in err
    words = ("upgrade", "pw", "--max-slice-restarts=3", "--discard-changes", "--dry-run")
    told = sps(*words, *place).stdout
    assert "backoffLimit: 3" in told
    assert "rack" not in told
    assert jobset(namespace, "pw")["metadata"]["uid"] == uid

    # (A proxy that cannot start is one all the same.)
    proxy = job_inputs(
        name="isc-proxy-stays",
        namespace=namespace.name,
        session="session-of-one-who-stays",
        service_name="pw",
        service_address=service_address("pw"),
        virtual_slices=(KIND,),
        image="testbed/none:1",
        user="grace",
        host="laptop",
        deadline_s=300,
    )
    namespace.create("batch/v1/jobs", proxy_job(proxy))
    code, err = sps_failing("undeploy", "pw", "--drain-timeout=1", *place)
    assert code == 4
    assert "isc-proxy-stays (grace@laptop" in err
    with sps_running("undeploy", "pw", "--drain-timeout=170", *place) as undeploying:
        assert undeploying.stderr
        assert "isc-proxy-stays" in undeploying.stderr.readline()
        assert ANNOTATION_DRAINING in jobset(namespace, "pw")["metadata"]["annotations"]
        undeploying.terminate()
        assert undeploying.wait(DEADLINE_S) == 143, undeploying.stderr.read()
    assert not jobset(namespace, "pw")["metadata"].get("annotations")
    done = sps("undeploy", "pw", "--drain-timeout=1", "--evict", *place)
    assert "ending isc-proxy-stays" in done.stderr
    nothing_left(namespace)
    assert namespace.items(JOBSETS) == []


def wait_for_manager(namespace: Namespace) -> None:
    """Waits until the resource manager of `pw` serves.

    Before that it does not know SIGTERM, and its end takes its grace period of 30 seconds.
    """
    head = DeployedService(namespace, "pw").head["metadata"]["name"]
    namespace.wait_for_log(head, "Pathways Server serving on")


def test_the_old_service_is_made_again_where_the_new_one_cannot_be(
    namespace: Namespace,
    place: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del place
    before = ServiceInputs(
        name="pw", namespace=namespace.name, instances={KIND: 1}, image=OUR_SERVER_IMAGE
    )
    after = dataclasses.replace(before, max_slice_restarts=3)
    # Neither this release's manifest nor the recorded one: it must come back as it was.
    manifest = of_another_release(before)
    on_rack(manifest)
    manifest["metadata"]["annotations"] |= {"sps.dev/of-another-release": "7"}
    sent = recorded_spec(manifest)
    old = namespace.create(JOBSETS, manifest)
    wait_for_manager(namespace)

    async def refused(_cluster: Cluster, _what: object) -> Mapping[str, Any]:
        raise ApiError("no room", status=403, reason="Forbidden")

    async def replace() -> None:
        async with opened(Place(context="testbed", namespace=namespace.name).service) as cluster:
            await upgrade._replace(cluster, old, after)

    monkeypatch.setattr(deployment, "create", refused)
    with pytest.raises(ApiError, match="no room"):
        asyncio.run(replace())
    now = jobset(namespace, "pw")
    assert now["metadata"]["uid"] != old["metadata"]["uid"]
    assert not difference(now["spec"], old["spec"])
    assert recorded_spec(now) == sent
    assert now["metadata"]["annotations"] == old["metadata"]["annotations"]
    assert "the old one was created again" in capsys.readouterr().err

    # If that fails too, the printed manifest creates it.
    wait_for_manager(namespace)
    monkeypatch.setattr(deployment, "create_again", refused)
    old = dict(now)
    with pytest.raises(ApiError, match="no room"):
        asyncio.run(replace())
    assert namespace.items(JOBSETS) == []
    said, _, printed = capsys.readouterr().err.partition("`:\n")
    assert "no service pw now" in said
    assert "kubectl create -f - --context=testbed" in said
    now = namespace.create(JOBSETS, yaml.safe_load(printed))
    assert not difference(now["spec"], old["spec"])
    assert now["metadata"]["annotations"] == old["metadata"]["annotations"]
