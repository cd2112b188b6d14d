"""Builds the Job of a submitted job: a program, and its proxy in the same pod (ADR 110)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.constants import JOB_PORT
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.link_parts import SIDECAR_USER
from shared_pathways_service.manifests.pod_parts import env, env_from_field
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job, token_secret
from shared_pathways_service.manifests.token_parts import (
    TOKEN_FILE,
    TOKEN_KEY,
    token_mount,
)

__all__ = [
    "FINAL_CODE",
    "FINAL_CODES",
    "KEPT_S",
    "cancel_patch",
    "job_secret",
    "submitted_job",
    "submitted_patch",
]

#: Seconds for which a job that has ended is listed, and its output is kept: 7 days.
KEPT_S: Final = 7 * 86_400
#: Seconds after which a job ends whose submitter died before everything was created.
_SUBMISSION_S: Final = 300
#: Seconds for the program and its proxy to end after SIGTERM.
_GRACE_S: Final = 30
_REQUEST_KEY: Final = "request.json"
_FILES_KEY: Final = "workdir.tar.gz"
_INPUTS: Final = "/var/run/secrets/sps-job"
#: The program's files and what it writes.
_SCRATCH: Final = "/var/lib/sps-job"
#: Files in memory, in which program and proxy pass large arrays to each other.
_ARRAYS: Final = "/var/lib/sps-arrays"
_TERMINATION_LOG: Final = "/dev/termination-log"
_MODULE: Final = "shared_pathways_service.cli.pod_job_runner"
#: The exit code of an attempt whose request was refused, so that trying again would not help.
FINAL_CODE: Final = 126
#: The same, and a program that cannot be run, or does not exist.
FINAL_CODES: Final = (FINAL_CODE, 127)
#: Bytes of a command as it is shown; all annotations of an object together have 256 KiB.
_SHOWN_COMMAND: Final = 4096
_FAILURES: Final = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"


def submitted_job(
    inputs: ProxyJobInputs, request: JobRequest, image: str, files_url: str = ""
) -> dict[str, Any]:
    """Returns the Job (batch/v1), to be created, not applied.

    The proxy is a native sidecar (from Kubernetes 1.29 on): it starts before the program, and is
    ended after it. Each attempt is a pod. The pod has no access to the API server. The Job ends
    after some minutes, unless `submitted_patch` is applied once its Secret exists.

    Args:
      inputs: The inputs of the proxy; it has no link.
      request: The job. Of its environment and its files nothing is in the Job.
      image: The program's image, which contains this package.
      files_url: Where the archive of its working directory is; empty: in its Secret.
    """
    job = proxy_job(inputs)
    pod = job["spec"]["template"]["spec"]
    [proxy] = pod.pop("containers")
    is_ours = inputs.has_token
    mounts = [_mount("sps-arrays", _ARRAYS)] if is_ours else []
    proxy["restartPolicy"] = "Always"
    proxy["volumeMounts"] = [*proxy.get("volumeMounts", ()), *mounts]
    if is_ours:
        proxy["args"].append(f"--large_transfer_dir={_ARRAYS}")
    pod |= {
        "terminationGracePeriodSeconds": _GRACE_S,
        "initContainers": [proxy],
        "containers": [_program(inputs, image, files_url, mounts)],
        "volumes": _volumes(
            inputs, pod.get("volumes", ()), is_ours=is_ours, has_files=not files_url
        ),
    }
    # Else the containers of a pod without a user could not read their files.
    pod["securityContext"].setdefault("fsGroup", SIDECAR_USER)
    if inputs.tenant.max_lifetime_s is not None and not is_ours:
        # (Our resource manager ends the tenant.)
        pod["activeDeadlineSeconds"] = max(1, int(inputs.tenant.max_lifetime_s))
    spec = job["spec"]
    del spec["backoffLimit"]
    spec |= {
        "activeDeadlineSeconds": _SUBMISSION_S,
        # (Pods of an indexed Job know how often they were tried.)
        "completionMode": "Indexed",
        "backoffLimitPerIndex": request.retries,
        "ttlSecondsAfterFinished": KEPT_S,
        "podFailurePolicy": {"rules": [_final_end()]},
    }
    job["metadata"]["labels"][names.LABEL_KIND] = names.KIND_JOB
    job["metadata"]["annotations"] |= {
        names.ANNOTATION_COMMAND: _shown(request.command),
        names.ANNOTATION_WORKDIR: request.workdir,
    }
    return job


def job_secret(
    inputs: ProxyJobInputs, request: JobRequest, files: bytes | None, token: str, job_uid: str
) -> dict[str, Any]:
    """Returns the Secret that the pods of a job wait for, deleted with the Job of this UID.

    Args:
      inputs: The inputs of the proxy.
      request: The job, with its environment.
      files: The archive of its working directory; None: it is elsewhere.
      token: The token of its proxies.
      job_uid: The UID of the Job.
    """
    secret = token_secret(inputs, token, job_uid)
    secret["stringData"][_REQUEST_KEY] = json.dumps(request.to_json())
    if files is None:
        return secret
    return {**secret, "data": {_FILES_KEY: base64.b64encode(files).decode()}}


def submitted_patch(uid: str) -> dict[str, Any]:
    """Returns the merge patch of a job that is completely created: it may run without limit."""
    return {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": None}}


def cancel_patch(uid: str) -> dict[str, Any]:
    """Returns the merge patch that ends a job, so that it stays listed as cancelled."""
    return {
        "metadata": {"uid": uid, "annotations": {names.ANNOTATION_CANCELLED: "true"}},
        "spec": {"activeDeadlineSeconds": 1},
    }


def _shown(command: Sequence[str]) -> str:
    """Returns a command as JSON for display, cut to `_SHOWN_COMMAND` bytes."""
    text = json.dumps(list(command))
    if len(text) <= _SHOWN_COMMAND:
        return text
    shown: list[str] = []
    for word in command:
        if not _fits([*shown, word]):
            break
        shown.append(word)
    cut = command[len(shown)]
    while not _fits([*shown, cut]):
        cut = cut[: len(cut) // 2]
        if not cut:
            break
    return json.dumps([*shown, f"{cut}…"])


def _fits(words: Sequence[str]) -> bool:
    return len(json.dumps([*words, "…"])) <= _SHOWN_COMMAND


def _program(
    inputs: ProxyJobInputs, image: str, files_url: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    places = {
        "HOME": _SCRATCH,
        "TMPDIR": f"{_SCRATCH}/temporary",
        "SPS_STATE_DIR": f"{_SCRATCH}/state",
        "SPS_CACHE_DIR": f"{_SCRATCH}/cache",
    }
    return {
        "name": names.JOB_CONTAINER,
        "image": image,
        "command": ["python3", "-P", "-m", _MODULE],
        "args": [
            f"--request={_INPUTS}/{_REQUEST_KEY}",
            f"--files={files_url or f'{_INPUTS}/{_FILES_KEY}'}",
            f"--scratch={_SCRATCH}",
            f"--report={_TERMINATION_LOG}",
            f"--service={inputs.service_address}",
            *([f"--arrays={_ARRAYS}"] if inputs.has_token else []),
        ],
        "env": [
            *(env(name, value) for name, value in places.items()),
            env_from_field("POD_IP", "status.podIP"),
            env_from_field("POD_UID", "metadata.uid"),
            env_from_field("POD_ATTEMPT", _FAILURES),
            *([env("SPS_TOKEN_FILE", TOKEN_FILE)] if inputs.has_token else []),
        ],
        "ports": [{"containerPort": JOB_PORT}],
        # The pod counts as ready while the program runs.
        "readinessProbe": {"tcpSocket": {"port": JOB_PORT}, "periodSeconds": 1},
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            _mount("sps-inputs", _INPUTS, readOnly=True),
            _mount("sps-scratch", _SCRATCH),
            *mounts,
        ]
        + ([token_mount()] if inputs.has_token else []),
    }


def _volumes(
    inputs: ProxyJobInputs,
    of_proxy: Iterable[Mapping[str, Any]],
    *,
    is_ours: bool,
    has_files: bool,
) -> list[Mapping[str, Any]]:
    named = (_REQUEST_KEY, _FILES_KEY) if has_files else (_REQUEST_KEY,)
    keys = [{"key": key, "path": key} for key in named]
    secret = {"secretName": inputs.mounted_name, "defaultMode": 0o400, "items": keys}
    volumes: list[Mapping[str, Any]] = [
        {"name": "sps-inputs", "secret": secret},
        {"name": "sps-scratch", "emptyDir": {}},
    ]
    if is_ours:
        volumes.append({"name": "sps-arrays", "emptyDir": {"medium": "Memory"}})
    return [*map(_only_token, of_proxy), *volumes]


def _only_token(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a volume of the proxy, which does not get the program's variables."""
    if "secret" not in volume:
        return volume
    items = [{"key": TOKEN_KEY, "path": TOKEN_KEY}]
    return {**volume, "secret": {**volume["secret"], "items": items}}


def _final_end() -> Mapping[str, Any]:
    codes = {
        "containerName": names.JOB_CONTAINER,
        "operator": "In",
        "values": list(FINAL_CODES),
    }
    return {"action": "FailJob", "onExitCodes": codes}


def _mount(name: str, path: str, **more: bool) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **more}
