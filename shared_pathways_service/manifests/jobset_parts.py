"""Common parts of all JobSets of Pathways: names, ports, variables, placement of pods.

Source: the public documentation and manifests of Pathways on Cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import DNS_LABEL_LIMIT, check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.pod_parts import env, env_from_field, env_from_label, literal

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
SERVER_REPOSITORY: Final = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server"

#: The annotation that gives each job an exclusive domain, and the domain.
EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
HEAD_TOPOLOGY: Final = "kubernetes.io/hostname"
WORKER_TOPOLOGY: Final = "cloud.google.com/gke-nodepool"

RM_PORTS: Final = (constants.RESOURCE_MANAGER_PORT, 29002)
PROXY_PORTS: Final = (constants.PROXY_PORT,)
RM_LIMITS: Final = {"cpu": "8", "memory": "32G"}
WORKER_PORTS: Final = (constants.WORKER_PORT, 29006, 8471, 8080)

COORDINATOR: Final = {"replicatedJob": names.HEAD_JOB, "jobIndex": 0, "podIndex": 0}
STARTUP_POLICY: Final = {"startupPolicyOrder": "InOrder"}
SUCCESS_POLICY: Final = {"operator": "All", "targetReplicatedJobs": [names.HEAD_JOB]}
HOST_NETWORK: Final = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}

#: If a pod that is deleted or evicted ends with 0, its Job counts it as success, and with the
#: head's Job the whole JobSet would be complete. This is a shell's code for SIGTERM.
_STOPPED: Final = "143"


def check_jobset_name(name: object, *, field: str = "name") -> str:
    """Checks and returns the JobSet's name, which a label of every pod contains twice.

    Raises:
      InvalidRequestError: The name is too long for that, or not a DNS label that begins with a
        letter.
    """
    limit = (DNS_LABEL_LIMIT - len(f"-{names.HEAD_JOB}-0-0.")) // 2
    why = f"the label with the head's host name has it twice in {DNS_LABEL_LIMIT} characters"
    checked = check_dns_label(field, name, limit=limit, why=why)
    if not checked[0].isalpha():
        raise InvalidRequestError(field, name, "a name that begins with a letter")
    return checked


def container_ports(ports: Sequence[int]) -> list[dict[str, Any]]:
    """Returns ports as a container declares them."""
    return [{"containerPort": port, "protocol": "TCP"} for port in ports]


def head_variable(name: str = "PATHWAYS_HEAD") -> dict[str, Any]:
    """Returns the variable with the head's host name."""
    return env_from_label(name, "jobset.sigs.k8s.io/coordinator")


def _place_variables() -> list[dict[str, Any]]:
    """Returns the variables that identify a server's JobSet and its part."""
    return [
        env_from_field("JOBSET_NAME", f"metadata.annotations['{names.LABEL_JOBSET}']"),
        env_from_field(
            "REPLICATED_JOB_NAME", f"metadata.annotations['{names.LABEL_REPLICATED_JOB}']"
        ),
    ]


def worker_variables() -> list[dict[str, Any]]:
    """Returns the variables of every worker, whatever its image."""
    return [
        env("TPU_MIN_LOG_LEVEL", "0"),
        env("TF_CPP_MIN_LOG_LEVEL", "0"),
        env("XCLOUD_ENVIRONMENT", "GCP"),
        env("MEGASCALE_GRPC_ENABLE_XOR_TRACER", "false"),
        env_from_label("MEGASCALE_SLICE_ID", names.LABEL_JOB_INDEX),
        env_from_label("MEGASCALE_NUM_SLICES", "jobset.sigs.k8s.io/replicatedjob-replicas"),
        *_place_variables(),
        head_variable(),
        head_variable("MEGASCALE_COORDINATOR_ADDRESS"),
    ]


def rm_variables() -> list[dict[str, Any]]:
    """Returns the variables of every resource manager, whatever its image."""
    return [
        *_place_variables(),
        head_variable("HOST_ADDRESS"),
        # Stops the server from searching for TPUs, which its pod does not have.
        env("TPU_SKIP_MDS_QUERY", "true"),
    ]


def bind_variables(*, stops: bool = True) -> list[dict[str, Any]]:
    """Returns the variables that only our servers need in a pod.

    Args:
      stops: Whether the pod ends with the container, which must not look like success.
    """
    variables = [env("SPS_BIND_ADDRESS", "0.0.0.0")]  # noqa: S104 - a pod's own
    if stops:
        variables.append(env("SPS_STOP_EXIT_CODE", _STOPPED))
    return variables


def own_worker_variables(kind: InstanceType, *, executors: bool = False) -> list[dict[str, Any]]:
    """Returns the variables that only our workers need.

    Args:
      kind: The type of their slice.
      executors: Whether they run executors, which proxies and other workers must reach.
    """
    variables = [
        *bind_variables(),
        env("SPS_INSTANCE_TYPE", str(kind)),
        env_from_field("SPS_HOST", "spec.nodeName"),
    ]
    if executors:
        variables.append(env_from_field("SPS_EXECUTOR_ADDRESS", "status.podIP"))
    return variables


def engine_variable(engine: str) -> dict[str, Any]:
    """Returns the variable by which our servers know where programs run."""
    return env("SPS_ENGINE", engine)


def platform_variable(platform: str) -> dict[str, Any]:
    """Returns the variable by which our servers know what executors compute on."""
    return env("SPS_PLATFORM", platform)


def rm_flag() -> str:
    """Returns the flag with the resource manager's address, for the pods of its JobSet."""
    return f"--resource_manager_address=$(PATHWAYS_HEAD):{constants.RESOURCE_MANAGER_PORT}"


def rm_arguments(counts: dict[InstanceType, int], bucket: str) -> list[str]:
    """Returns the arguments of a resource manager with slices of these types."""
    return [
        f"--server_port={constants.RESOURCE_MANAGER_PORT}",
        *scratch(bucket),
        "--node_type=resource_manager",
        f"--instance_count={','.join(map(str, counts.values()))}",
        f"--instance_type={','.join(map(str, counts))}",
    ]


def scratch(bucket: str) -> list[str]:
    """Returns the flag with the location for scratch data; none without one."""
    return [literal(f"--gcs_scratch_location={bucket}")] if bucket else []


def tpu_node_selector(kind: InstanceType) -> dict[str, str]:
    """Returns the labels of the nodes of a slice's type."""
    return {
        "cloud.google.com/gke-tpu-accelerator": kind.accelerator_label,
        "cloud.google.com/gke-tpu-topology": kind.topology,
    }


def tpu_limits(kind: InstanceType) -> dict[str, Any]:
    """Returns the resources of a container that has all chips of one host."""
    return {"limits": {"google.com/tpu": str(kind.chips_per_host)}}
