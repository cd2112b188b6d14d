from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from harness.processes import REPOSITORY
from shared_pathways_service.cluster_state.service_reading import difference
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_jobset
from shared_pathways_service.manifests.state_parts import read_size, size_in_bytes
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions

OUR_IMAGE = "r.io/x/shared-pathways-service/server:0.1.0"
GOOGLES = ServiceInputs(name="pw", instances={"tpuv6e:4x4": 3}, gcs_bucket="gs://bucket")
OURS = ServiceInputs(
    name="pw",
    namespace="team-a",
    instances={"tpuv6e:4x4": 3, "tpuv5e:2x2": 2},
    image=OUR_IMAGE,
    spares=1,
)


def job(inputs: ServiceInputs, name: str) -> dict[str, Any]:
    jobs = service_jobset(inputs)["spec"]["replicatedJobs"]
    [found] = [job for job in jobs if job["name"] == name]
    replicated: dict[str, Any] = found
    return replicated


def pod(inputs: ServiceInputs, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = job(inputs, name)["template"]["spec"]["template"]["spec"]
    return spec


def container(inputs: ServiceInputs, name: str) -> dict[str, Any]:
    [only] = pod(inputs, name)["containers"]
    found: dict[str, Any] = only
    return found


def variables(inputs: ServiceInputs, name: str, **fields: str) -> dict[str, str]:
    """What the container sees, with `fields` in place of what is taken from the pod's fields."""
    env = container(inputs, name)["env"]
    found = {v["name"]: v.get("value", fields.get(v["name"], "")) for v in env}
    for name_, value in fields.items():
        found = {key: text.replace(f"$({name_})", value) for key, text in found.items()}
    return found


def test_the_head_is_restarted_when_it_dies() -> None:
    for inputs in (GOOGLES, OURS):
        spec = job(inputs, "pathways-head")["template"]["spec"]
        assert spec["backoffLimit"] == 1_000_000
        assert (spec["completions"], spec["parallelism"]) == (1, 1)
        assert pod(inputs, "pathways-head")["restartPolicy"] == "OnFailure"


def test_a_slice_has_a_pod_a_host_on_a_node_pool_of_its_own() -> None:
    worker = job(GOOGLES, "worker")
    assert worker["replicas"] == 3
    spec = worker["template"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (4, 4)
    assert list(worker["template"]["metadata"]["annotations"].values()) == [
        "cloud.google.com/gke-nodepool"
    ]
    assert pod(GOOGLES, "worker")["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert container(GOOGLES, "worker")["resources"] == {"limits": {"google.com/tpu": "4"}}


def test_chips_of_a_host_follow_from_the_type() -> None:
    for kind, chips, hosts in (("tpuv6e1t:2x4", "8", 1), ("tpuv6e:2x4", "4", 2)):
        inputs = dataclasses.replace(GOOGLES, instances={kind: 1})
        limits = container(inputs, "worker")["resources"]["limits"]
        assert limits == {"google.com/tpu": chips}
        assert job(inputs, "worker")["template"]["spec"]["completions"] == hosts


def test_our_resource_manager_takes_flags_and_variables() -> None:
    seen = variables(OURS, "pathways-head")
    options = parse_flags(ResourceManagerOptions, container(OURS, "pathways-head")["args"], seen)
    assert {str(kind): count for kind, count in options.slices().items()} == OURS.instances
    assert (options.num_spares, options.bind_address) == (1, "0.0.0.0")
    assert options.server_port == 29001
    # A Job takes 0 for work that is done, and a head that is drained would end the service.
    assert options.stop_exit_code > 0


def test_our_resource_manager_keeps_its_state_on_the_volume_that_its_user_may_write() -> None:
    kept = dataclasses.replace(OURS, state_size="1Gi")
    arguments, seen = container(kept, "pathways-head")["args"], variables(kept, "pathways-head")
    state_file = parse_flags(ResourceManagerOptions, arguments, seen).state_file
    [mount] = container(kept, "pathways-head")["volumeMounts"]
    assert state_file.startswith(f"{mount['mountPath']}/")
    [volume] = pod(kept, "pathways-head")["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["persistentVolumeClaim"] == {"claimName": "pw-state"}
    text = (REPOSITORY / "Containerfile").read_text(encoding="utf-8")
    group = pod(kept, "pathways-head")["securityContext"]["fsGroup"]
    assert f"\nUSER {group}:{group}\n" in text
    # Nothing changes for the workers, nor without a volume.
    assert pod(kept, "worker-tpuv5e-2x2") == pod(OURS, "worker-tpuv5e-2x2")
    assert not {"volumes", "securityContext"} & pod(OURS, "pathways-head").keys()


def test_a_volume_has_a_size_and_an_image_that_writes_to_it() -> None:
    for wrong, field in (
        ({"state_size": "1 GB"}, "state_size"),
        ({"storage_class": "fast"}, "storage_class"),
        ({"state_size": "1Gi", "storage_class": "Fast!"}, "storage_class"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            dataclasses.replace(OURS, **wrong)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(InvalidRequestError, match="no state file"):
        dataclasses.replace(GOOGLES, state_size="1Gi")
    assert (read_size("500M"), read_size("0"), read_size("0Gi")) == ("500M", "", "")
    sizes = [size_in_bytes(text) for text in ("1", "1k", "1.5Ki", "1Gi", "x")]
    assert sizes == [1, 1000, 1536, 2**30, 0]


def test_our_workers_know_their_type_and_slices_of_two_types_are_not_mixed_up() -> None:
    fields = {"MEGASCALE_SLICE_ID": "1", "PATHWAYS_HEAD": "pw-pathways-head-0-0.pw"}
    slices = set()
    for name, kind in (("worker", "tpuv6e:4x4"), ("worker-tpuv5e-2x2", "tpuv5e:2x2")):
        seen = variables(OURS, name, SPS_HOST="node-7", **fields)
        arguments = [
            argument.replace("$(PATHWAYS_HEAD)", fields["PATHWAYS_HEAD"])
            for argument in container(OURS, name)["args"]
        ]
        options = parse_flags(WorkerOptions, arguments, seen)
        assert options.instance_type == kind
        assert options.resource_manager_address == service_address("pw")
        assert (options.bind_address, options.host) == ("0.0.0.0", "node-7")
        assert options.stop_exit_code > 0
        slices.add(options.slice_id)
    assert len(slices) == 2


def test_a_single_types_slices_are_counted_as_the_real_ones() -> None:
    inputs = dataclasses.replace(OURS, instances={"tpuv6e:4x4": 3})
    assert "SPS_SLICE_ID" not in variables(inputs, "worker")


@pytest.mark.parametrize("engine", ["local", "distributed"])
def test_our_workers_have_no_token_of_the_cluster_and_no_capabilities(engine: str) -> None:
    inputs = dataclasses.replace(OURS, engine=engine)
    for name in ("worker", "worker-tpuv5e-2x2"):
        assert pod(inputs, name)["automountServiceAccountToken"] is False
        assert container(inputs, name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    # Those of Google's image are as upstream's.
    assert "automountServiceAccountToken" not in pod(GOOGLES, "worker")
    assert "securityContext" not in container(GOOGLES, "worker")


def test_googles_images_get_no_variable_of_ours() -> None:
    for name in ("pathways-head", "worker"):
        assert not [v for v in variables(GOOGLES, name) if v.startswith("SPS_")]


def test_the_heads_host_name_fits_into_a_label() -> None:
    longest = ServiceInputs(name="a" * 22, instances={"tpuv6e:2x2": 1})
    assert len(service_address(longest.name).rpartition(":")[0]) == 63


def test_without_a_bucket_none_is_named() -> None:
    for name in ("pathways-head", "worker"):
        assert not [a for a in container(OURS, name)["args"] if "gcs" in a]


def test_the_nodes_network_is_used_when_asked_for() -> None:
    for name in ("pathways-head", "worker"):
        assert "hostNetwork" not in pod(GOOGLES, name)
        spec = pod(dataclasses.replace(GOOGLES, host_network=True), name)
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_a_slice_may_fail_as_often_as_was_said_on_each_of_its_hosts() -> None:
    few = dataclasses.replace(GOOGLES, max_slice_restarts=3)
    assert job(few, "worker")["template"]["spec"]["backoffLimit"] == 4 * 3
    # The head is no slice; and the field takes no larger number.
    assert job(few, "pathways-head")["template"]["spec"]["backoffLimit"] == 1_000_000
    large = dataclasses.replace(GOOGLES, instances={"tpuv6e:16x16": 1}, max_slice_restarts=2**30)
    assert job(large, "worker")["template"]["spec"]["backoffLimit"] == 2**31 - 1


def test_the_whole_service_starts_again_only_when_asked_for() -> None:
    assert "failurePolicy" not in service_jobset(GOOGLES)["spec"]
    again = service_jobset(dataclasses.replace(GOOGLES, max_restarts=30))["spec"]
    assert again["failurePolicy"] == {"restartStrategy": "Recreate", "maxRestarts": 30}


def test_arguments_of_ones_own_come_last_and_as_they_are() -> None:
    inputs = dataclasses.replace(
        GOOGLES, server_args=("--v=1", "--price=$(X)"), worker_args=("--w",)
    )
    assert container(inputs, "pathways-head")["args"][-2:] == ["--v=1", "--price=$$(X)"]
    assert container(inputs, "worker")["args"][-1] == "--w"


def test_a_sidecar_and_a_bucket_are_beside_each_worker() -> None:
    inputs = dataclasses.replace(
        GOOGLES,
        sidecar_image="r.io/sidecar:jax-0.9.0",
        gcs_bucket="gs://bucket/a/b/",
        gcsfuse=True,
        priority_class="high-priority-job",
    )
    spec = pod(inputs, "worker")
    [sidecar] = spec["initContainers"]
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("r.io/sidecar:jax-0.9.0", "Always")
    for one in (sidecar, container(inputs, "worker")):
        assert [m["mountPath"] for m in one["volumeMounts"]] == ["/tmp", "/tmp/sidecar_dir", "/gcs"]
    tmp, memory, bucket = spec["volumes"]
    assert (tmp["hostPath"]["path"], memory["emptyDir"]) == ("/tmp", {"medium": "Memory"})
    attributes = bucket["csi"]["volumeAttributes"]
    assert attributes == {"bucketName": "bucket", "mountOptions": "implicit-dirs,only-dir=a/b"}
    template = job(inputs, "worker")["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    assert container(inputs, "worker")["args"][-1] == (
        "--cloud_pathways_sidecar_shm_directory=/tmp/sidecar_dir"
    )
    # Nothing of it at the head, which has no user's code; both go before other pods.
    assert "volumes" not in pod(inputs, "pathways-head")
    for name in ("pathways-head", "worker"):
        assert pod(inputs, name)["priorityClassName"] == "high-priority-job"


@pytest.mark.parametrize("inputs", [GOOGLES, OURS])
def test_what_was_put_in_is_read_out_again(inputs: ServiceInputs) -> None:
    service = read_service(service_jobset(inputs))
    assert service is not None
    assert (service.name, service.namespace) == (inputs.name, inputs.namespace)
    assert service.address == service_address(inputs.name)
    assert service.instances == inputs.instances
    assert service.wanted == sum(inputs.instances.values())
    assert service.gcs_scratch_location == inputs.gcs_bucket
    assert service.image == inputs.image
    assert {g.instance_type: g.slices for g in service.workers} == inputs.instances


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("name", {"name": "Pw"}),
        ("name", {"name": "a" * 23}),
        ("name", {"name": "7up"}),
        ("instances", {"instances": {}}),
        ("instances", {"instances": {"tpuv6e:4x4": 1, "tpuv5e:2x2": 1}}),
        ("gcs_bucket", {"gcs_bucket": "s3://bucket"}),
        ("spares", {"spares": 1}),
        ("spares", {"spares": 3, "image": OUR_IMAGE}),
        ("max_slice_restarts", {"max_slice_restarts": -1}),
        ("max_restarts", {"max_restarts": -1}),
        ("max_keep_for_s", {"max_keep_for_s": 59}),
        ("priority_class", {"priority_class": "Urgent!"}),
        ("server_args", {"server_args": ["-v"]}),
        ("server_args", {"server_args": ["--server_port=1"]}),
        ("worker_args", {"worker_args": ["--resource_manager_address=x:1"]}),
        ("gcsfuse", {"gcsfuse": True, "gcs_bucket": ""}),
        ("sidecar_image", {"sidecar_image": "r.io/sidecar:1", "image": OUR_IMAGE}),
        (
            "sidecar_image",
            {"sidecar_image": "r.io/s:py312-jax0.8.0", "image": "r.io/server:jax-0.9.0"},
        ),
    ],
)
def test_what_no_service_can_be_made_of_is_refused(field: str, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        dataclasses.replace(GOOGLES, **changed)
    assert caught.value.field == field


def test_a_flag_of_the_resource_manager_comes_as_it_was_said() -> None:
    said = ("--preemption_grace_s=60", "--max_slices_per_team=4", "--idle_release_s=1800")
    inputs = dataclasses.replace(OURS, server_args=said)
    arguments = container(inputs, "pathways-head")["args"]
    assert [word for word in arguments if word in said] == list(said)
    options = parse_flags(ResourceManagerOptions, arguments, {})
    times = (options.preemption_grace_s, options.idle_release_s, options.max_slices_per_team)
    assert times == (60.0, 1800.0, 4)


def test_servers_outside_of_google_cloud_speak_plaintext() -> None:
    name = "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS"
    outside = dataclasses.replace(GOOGLES, insecure_server_credentials=True)
    for job_name in ("pathways-head", "worker"):
        assert name not in variables(GOOGLES, job_name)
        assert variables(outside, job_name)[name] == "grpc_insecure_override"
    assert not difference_without(name, GOOGLES, outside)
    service = read_service(service_jobset(outside))
    assert service is not None
    assert service.insecure_credentials
    with pytest.raises(InvalidRequestError) as caught:
        dataclasses.replace(OURS, insecure_server_credentials=True)
    assert caught.value.field == "insecure_server_credentials"
    assert "need no ALTS" in caught.value.expected


def difference_without(variable: str, one: ServiceInputs, other: ServiceInputs) -> str:
    """Returns where two JobSets differ beside a variable."""
    made = [copy.deepcopy(service_jobset(inputs)["spec"]) for inputs in (one, other)]
    for spec in made:
        for replicated in spec["replicatedJobs"]:
            [only] = replicated["template"]["spec"]["template"]["spec"]["containers"]
            only["env"] = [each for each in only["env"] if each["name"] != variable]
    return difference(*made)
