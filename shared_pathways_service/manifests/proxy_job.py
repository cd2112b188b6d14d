"""Builds the Job of a tenant's proxy, and the objects that its pod mounts."""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.flags.tenants import slice_flags, tenant_variables
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.lifetime import TTL_AFTER_FINISHED_S
from shared_pathways_service.manifests.link_parts import (
    SIDECAR_USER,
    archive_data,
    archive_volume,
    link_flags,
    link_sidecar,
    listening_probe,
)
from shared_pathways_service.manifests.pod_parts import (
    INSECURE_CREDENTIALS,
    INSECURE_SERVERS,
    env,
    literal,
    restricted,
    toleration,
)
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.token_parts import (
    TOKEN_FILE,
    TOKEN_KEY,
    token_mount,
    token_volume,
)
from shared_pathways_service.manifests.verified_users.account_parts import (
    identity_mount,
    identity_variable,
    identity_volume,
)
from shared_pathways_service.manifests.verified_users.program_parts import (
    programs_flag,
    programs_mount,
    programs_security,
    programs_volume,
)

__all__ = ["link_config_map", "proxy_job", "token_secret"]

#: The file with a container's termination message for Kubernetes, and its maximum size.
_TERMINATION_LOG: Final = "/dev/termination-log"
_TERMINATION_BYTES: Final = 4096
#: Seconds for a proxy to listen: more than any timeout of connect() that makes sense.
_LISTENING_S: Final = 86_400
#: Seconds to release the tenant; a proxy has nothing else to save.
_GRACE_S: Final = 3


def proxy_job(inputs: ProxyJobInputs) -> dict[str, Any]:
    """Returns the Job (batch/v1), to be created, not applied.

    Its pod meets the `restricted` Pod Security Standard unless an option asks for more (host
    network, or root).
    """
    labels = _labels(inputs)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": inputs.tenant.name,
            "namespace": inputs.namespace,
            "labels": {**inputs.labels, **labels},
            "annotations": _annotations(inputs),
        },
        "spec": {
            # A proxy's state belongs to its session: after a restart it would be another proxy.
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": inputs.deadline_s,
            "ttlSecondsAfterFinished": TTL_AFTER_FINISHED_S,
            "template": {
                "metadata": {"labels": labels, "annotations": _pod_annotations(inputs)},
                "spec": _pod_spec(inputs),
            },
        },
    }


def token_secret(inputs: ProxyJobInputs, token: str, job_uid: str) -> dict[str, Any]:
    """Returns the Secret that the proxy's pod waits for and mounts, if it has one.

    It is deleted with the Job that has this UID.
    """
    return {
        **_owned("Secret", inputs, job_uid),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }


def link_config_map(inputs: ProxyJobInputs, archive: bytes, job_uid: str) -> dict[str, Any]:
    """Returns the ConfigMap with the program of the link's sidecar, if the pod has one.

    The pod waits for it. It is deleted with the Job that has this UID.
    """
    return {**_owned("ConfigMap", inputs, job_uid), "binaryData": archive_data(archive)}


def _owned(kind: str, inputs: ProxyJobInputs, job_uid: str) -> dict[str, Any]:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": inputs.tenant.name,
        "uid": job_uid,
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": inputs.mounted_name,
            "namespace": inputs.namespace,
            "labels": _labels(inputs),
            "ownerReferences": [owner],
        },
        "immutable": True,
    }


def _labels(inputs: ProxyJobInputs) -> dict[str, str]:
    service = inputs.service_name or inputs.service_address.rpartition(":")[0]
    labels = {
        names.LABEL_APP: names.APP,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_USER: inputs.tenant.user,
        names.LABEL_TEAM: inputs.tenant.team,
        names.LABEL_SESSION: inputs.session,
        names.LABEL_SERVICE: service,
    }
    return {key: value for key, text in labels.items() if (value := names.label_value(text))}


def _annotations(inputs: ProxyJobInputs) -> dict[str, str]:
    annotations = {
        names.ANNOTATION_HOST: inputs.tenant.host,
        names.ANNOTATION_INSTANCES: names.instances_text(inputs.tenant.type_names),
        names.ANNOTATION_CLIENT_VERSION: inputs.client_version,
        names.ANNOTATION_CREATED_BY_PID: str(inputs.created_by_pid or ""),
        names.ANNOTATION_KEEP_FOR: "" if inputs.keep_for_s is None else f"{inputs.keep_for_s:g}",
    }
    return {key: value for key, value in annotations.items() if value}


def _pod_annotations(inputs: ProxyJobInputs) -> dict[str, str]:
    annotations = _annotations(inputs)
    if inputs.identity is not None:
        # A policy of the cluster compares them with the user who creates the Job.
        annotations[names.ANNOTATION_VERIFIED_USER] = inputs.identity.user
        if inputs.tenant.team:
            annotations[names.ANNOTATION_VERIFIED_TEAM] = inputs.tenant.team
    return annotations


def _pod_spec(inputs: ProxyJobInputs) -> dict[str, Any]:
    options = inputs.options
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        # It does not use the API server, nor the variables of other services.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(inputs),
        "containers": [_container(inputs)],
    }
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        spec["tolerations"] = [toleration(text) for text in options.tolerations]
    if options.host_network:
        spec |= parts.HOST_NETWORK
    if inputs.has_secret:
        spec["volumes"] = [token_volume(inputs.mounted_name)]
    if inputs.identity is not None:
        spec["volumes"] = [*spec.get("volumes", ()), identity_volume(inputs.identity.audience)]
        # Only a pod with an account has a token.
        spec["serviceAccountName"] = "default"
    if inputs.programs_user:
        spec["volumes"] = [*spec.get("volumes", ()), programs_volume(inputs.programs_claim)]
        spec["securityContext"] |= programs_security()
    if inputs.sidecar is not None:
        spec["initContainers"] = [link_sidecar(inputs.sidecar, user=options.run_as_user)]
        spec["volumes"].append(archive_volume(inputs.mounted_name))
    return spec


def _pod_security(inputs: ProxyJobInputs) -> dict[str, Any]:
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user := inputs.options.run_as_user:
        # Without a number, Kubernetes refuses an image whose user is root or has a name.
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), user)
        return {**security, "runAsNonRoot": True, **ids}
    if inputs.sidecar is not None:
        # Else the sidecar could not read its token.
        security["fsGroup"] = SIDECAR_USER
    return security


def _container(inputs: ProxyJobInputs) -> dict[str, Any]:
    options = inputs.options
    container: dict[str, Any] = {
        "name": names.PROXY_CONTAINER,
        "image": inputs.image,
        "args": _arguments(inputs),
        "env": _environment(inputs),
        # The pod's status has the end of its log.
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": parts.container_ports(_ports(inputs)),
        "resources": {
            "requests": {"cpu": options.cpu, "memory": options.memory},
            # A proxy that exceeds its memory ends alone, without its neighbours.
            "limits": {"memory": options.memory},
        },
        "securityContext": restricted(),
    }
    if inputs.sidecar is not None:
        # A link accepts connections before the proxy does, and would then end them.
        container["startupProbe"] = listening_probe(constants.PROXY_PORT, _LISTENING_S)
    if inputs.has_token:
        container["volumeMounts"] = [token_mount()]
    if inputs.identity is not None:
        container["volumeMounts"] = [*container.get("volumeMounts", ()), identity_mount()]
    if inputs.programs_user:
        container["volumeMounts"].append(programs_mount(inputs.programs_user))
    return container


def _ports(inputs: ProxyJobInputs) -> tuple[int, ...]:
    has_link = inputs.link is not None and inputs.sidecar is None
    return (*parts.PROXY_PORTS, constants.LINK_PORT) if has_link else parts.PROXY_PORTS


def _arguments(inputs: ProxyJobInputs) -> list[str]:
    arguments = [
        f"--server_port={constants.PROXY_PORT}",
        f"--resource_manager_address={inputs.service_address}",
    ]
    if inputs.gcs_bucket:
        arguments.append(f"--gcs_scratch_location={inputs.gcs_bucket}")
    arguments.extend(slice_flags(inputs.tenant))
    if inputs.options.sidecar:
        ours = "--colocated_python=true"
        arguments.append(ours if inputs.has_token else "--sidecar_name=external")
    arguments.extend(inputs.options.xla_flags)
    if inputs.has_token:
        # The record of running programs: the kubelet copies it to the pod's status after a crash.
        # If it is empty, as after a normal end, the kubelet uses the end of the log.
        arguments.append(f"--last_requests_file={_TERMINATION_LOG}")
        arguments.append(f"--last_requests_bytes={_TERMINATION_BYTES}")
        if inputs.link is not None:
            arguments.extend(link_flags(inputs.link))
    if inputs.programs_user:
        arguments.append(programs_flag())
    # (Only with our images.)
    arguments.extend(f"--{name}={value}" for name, value in inputs.options.limits.items())
    return [literal(argument) for argument in arguments]


def _environment(inputs: ProxyJobInputs) -> list[dict[str, Any]]:
    variables: dict[str, str] = {}
    if inputs.options.use_insecure_credentials:
        # Exactly this text: the binary silently ignores 1, True and yes.
        variables[INSECURE_CREDENTIALS] = "true"
    if inputs.insecure_server_credentials:
        variables |= [INSECURE_SERVERS]
    if inputs.has_token:
        variables |= {
            "SPS_BIND_ADDRESS": "0.0.0.0",  # noqa: S104 - a pod's own address, and a token
            "SPS_TOKEN_FILE": TOKEN_FILE,
            **tenant_variables(inputs.tenant),
        }
    if inputs.identity is not None:
        variables |= [identity_variable()]
    if inputs.has_executors:
        variables["SPS_ENGINE"] = inputs.engine
        if inputs.platform != constants.CPU:
            variables["SPS_PLATFORM"] = inputs.platform
    return [env(name, value) for name, value in variables.items()]
