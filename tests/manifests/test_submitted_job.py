"""The Job of a submitted job: a program, and its proxy in the same pod."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import pytest

from harness.session_requests import with_fields
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.jobs.submitted_job import (
    job_secret,
    submitted_job,
    submitted_patch,
)
from shared_pathways_service.manifests.proxy_inputs import IdentityInputs, ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job
from tests.manifests.proxy_jobs import GOOGLES, OURS, with_options

REQUEST = JobRequest.build(
    Requester(user="ada", host="laptop", suffix="x7k2p"),
    ["python3", "train.py"],
    workdir="/home/ada",
    environment={"API_KEY": "hunter2"},
    retries=3,
    context="testbed",
)


def job(inputs: ProxyJobInputs) -> dict[str, Any]:
    return submitted_job(inputs, REQUEST, "r.io/mine:1")


def pod(inputs: ProxyJobInputs) -> dict[str, Any]:
    found: dict[str, Any] = job(inputs)["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("inputs", [OURS, GOOGLES], ids=["ours", "googles"])
def test_the_proxy_is_a_sidecar_of_the_program(inputs: ProxyJobInputs) -> None:
    [proxy], [program] = pod(inputs)["initContainers"], pod(inputs)["containers"]
    [alone] = proxy_job(inputs)["spec"]["template"]["spec"]["containers"]
    assert proxy["restartPolicy"] == "Always"
    assert proxy["args"][: len(alone["args"])] == alone["args"]
    assert (program["image"], program["name"]) == ("r.io/mine:1", "job")
    # As restricted as the proxy.
    assert program["securityContext"] == alone["securityContext"]
    assert pod(inputs)["automountServiceAccountToken"] is False
    assert pod(inputs)["restartPolicy"] == "Never"


def test_kubernetes_retries_it_and_keeps_it_for_a_while() -> None:
    spec = job(OURS)["spec"]
    assert (spec["completionMode"], spec["backoffLimitPerIndex"]) == ("Indexed", 3)
    assert "backoffLimit" not in spec
    # It ends by itself if its submitter dies before everything is created.
    assert spec.keys() > submitted_patch("uid")["spec"].keys() == {"activeDeadlineSeconds"}
    assert spec["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    [rule] = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [126, 127])


def test_it_counts_as_a_proxy_and_as_a_job() -> None:
    labels = job(OURS)["metadata"]["labels"]
    assert labels.items() >= proxy_job(OURS)["metadata"]["labels"].items()
    assert labels[names.LABEL_KIND] == names.KIND_JOB


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-c", "x" * 9000, "--more"],
        ["python3", "-c", "\U0001f600" * 4000],
        [*["a"] * 3000, ""],
        ["a", *[""] * 3000],
    ],
)
def test_a_long_command_is_cut_for_display(command: list[str]) -> None:
    request = dataclasses.replace(REQUEST, command=tuple(command))
    made = submitted_job(OURS, request, "r.io/mine:1")
    text = made["metadata"]["annotations"][names.ANNOTATION_COMMAND]
    shown = json.loads(text)
    assert len(text) <= 4096
    assert shown[0] == command[0]
    assert shown[-1].endswith("…")


def test_secrets_are_in_the_secret_alone() -> None:
    secret = job_secret(OURS, REQUEST, b"files", "token", "uid")
    assert "hunter2" not in json.dumps(job(OURS))
    request = JobRequest.from_json(json.loads(secret["stringData"]["request.json"]))
    assert request.environment == {"API_KEY": "hunter2"}
    assert base64.b64decode(secret["data"]["workdir.tar.gz"]) == b"files"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid"
    # The proxy gets only its token.
    [proxy] = pod(OURS)["initContainers"]
    volumes = {volume["name"]: volume for volume in pod(OURS)["volumes"]}
    items = [
        item["key"]
        for mount in proxy["volumeMounts"]
        for item in volumes[mount["name"]].get("secret", {}).get("items", ())
    ]
    assert items == ["token"]


def test_arrays_pass_through_memory_with_our_images_only() -> None:
    [proxy], [program] = pod(OURS)["initContainers"], pod(OURS)["containers"]
    shared = [mount for mount in proxy["volumeMounts"] if mount in program["volumeMounts"]]
    [arrays] = [mount for mount in shared if mount["name"] == "sps-arrays"]
    assert {"name": "sps-arrays", "emptyDir": {"medium": "Memory"}} in pod(OURS)["volumes"]
    assert f"--large_transfer_dir={arrays['mountPath']}" in proxy["args"]
    assert f"--arrays={arrays['mountPath']}" in program["args"]
    assert "arrays" not in json.dumps(pod(GOOGLES))


def test_files_are_readable_without_a_user() -> None:
    assert pod(with_options(OURS, "run_as_user:0"))["securityContext"]["fsGroup"] > 0


def test_the_proxy_alone_proves_its_user() -> None:
    inputs = with_fields(OURS, identity=IdentityInputs(audience="sps", user="ada"))
    [proxy], [program] = pod(inputs)["initContainers"], pod(inputs)["containers"]
    [identity] = [volume["name"] for volume in pod(inputs)["volumes"] if "projected" in volume]
    assert identity in [mount["name"] for mount in proxy["volumeMounts"]]
    assert identity not in [mount["name"] for mount in program["volumeMounts"]]
    annotations = job(inputs)["spec"]["template"]["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_VERIFIED_USER] == "ada"
