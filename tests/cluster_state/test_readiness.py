from __future__ import annotations

import dataclasses
import datetime

import pytest

from shared_pathways_service.cluster_state.log_lines import parse_line
from shared_pathways_service.cluster_state.readiness import (
    ServiceReadiness,
    check_instances,
    read_readiness,
    service_selector,
)
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import names
from tests.cluster_state import objects
from tests.cluster_state.objects import Object
from tests.cluster_state.services import SERVICE, head, labels, service_of, worker

WORKERS = [worker(index, host) for index in range(2) for host in range(2)]


def read(*pods: Object, service: Service = SERVICE) -> ServiceReadiness:
    return read_readiness(service, pods)


def test_all_is_ready() -> None:
    found = read(head(), *WORKERS)
    assert found.complete
    assert (found.ready, found.wanted, found.troubles) == (2, 2, ())
    assert found.ready_by_type == {"tpuv6e:2x4": 2}
    assert found.reason == ""
    assert service_selector(SERVICE) == "jobset.sigs.k8s.io/jobset-name=pw"


def test_the_heads_pod_is_missing() -> None:
    found = read(*WORKERS)
    assert not found.complete
    assert not found.head_ready
    assert not found.suffices_for(("tpuv6e:2x4",))
    assert "the resource manager is not ready" in found.reason
    assert "the head has no pod" in found.reason


def test_the_heads_image_cannot_be_pulled() -> None:
    stuck = objects.waiting(
        "ImagePullBackOff",
        "not found",
        name="head",
        container=names.RM_CONTAINER,
        labels=labels(names.HEAD_JOB),
    )
    found = read(stuck, *WORKERS)
    assert found.head is not None
    assert "cannot be pulled" in found.error().pods[0]


def test_a_worker_that_is_not_ready_takes_its_slice_along() -> None:
    broken = worker(1, 1, objects.unschedulable, message="0/9 nodes: no TPU")
    found = read(head(), *WORKERS[:3], broken)
    assert (found.ready, found.wanted) == (1, 2)
    assert found.troubles == ("w-1-1: no node takes it: 0/9 nodes: no TPU",)
    assert "1 of 2 slices are ready" in found.reason
    error = found.error()
    assert (error.ready, error.wanted, error.pods) == (1, 2, found.troubles)


def test_what_is_enough_for_the_request() -> None:
    found = read(head(), *WORKERS[:2])
    kind = "tpuv6e:2x4"
    assert found.suffices_for((kind,))
    assert found.suffices_for(())
    assert not found.suffices_for((kind, kind))
    assert found.suffices_for((kind, kind), elastic_slices=1)
    assert not found.suffices_for(("tpuv5e:2x2",))
    nothing = read(head())
    assert not nothing.suffices_for((kind, kind), elastic_slices=2)


def test_a_slice_without_pods_is_named() -> None:
    found = read(head(), *WORKERS[:3])
    assert found.troubles == ("1 of 2 pods of slice 1 of worker are missing",)


def test_a_pod_on_its_way_out_does_not_count_beside_its_successor() -> None:
    # Created in the same second, as far as can be told.
    dying = worker(1, 1, objects.pod, status=objects.RUNNING, deleted=True)
    fresh = worker(1, 1, name="w-new")
    for pods in ([dying, fresh], [fresh, dying]):
        assert read(head(), *WORKERS[:3], *pods).complete
    ended = worker(1, 1, objects.ended, code=1)
    assert read(head(), *WORKERS[:3], fresh, ended).complete


def test_a_dying_head_is_not_ready_though_its_successor_is_on_the_way() -> None:
    dying = head(objects.pod, status=objects.RUNNING, ready=True, deleted=True)
    assert not read(dying, *WORKERS).head_ready
    fresh = head(objects.unschedulable, message="wait")
    assert "wait" in read(dying, fresh, *WORKERS).reason


def test_a_crash_loop_is_reported_with_its_exit_code() -> None:
    status = {
        "restartCount": 3,
        "lastState": {"terminated": {"exitCode": 1}},
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    broken = worker(0, 0, objects.pod, status=status, restarts=True)
    assert "exit code 1" in read(head(), broken, *WORKERS[1:]).reason


def test_a_crash_by_a_known_error_is_explained_and_final() -> None:
    message = (
        "E1 Permanent error, with a last message of The specified bucket does not exist.; Error "
        "while initializing persistent cache storage gcs"
    )
    status = {
        "restartCount": 1,
        "lastState": {"terminated": {"exitCode": 1, "message": message}},
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    broken = worker(0, 0, objects.pod, status=status, restarts=True)
    found = read(head(), broken, *WORKERS[1:])
    assert found.is_hopeless
    assert "the bucket of its --gcs_scratch_location does not exist" in found.reason
    assert "create the bucket" in found.error().hint
    over = dataclasses.replace(SERVICE, ended="its JobSet has failed")
    assert "has failed - the bucket of" in read(head(), broken, service=over).reason


def test_a_full_memory_of_a_worker_is_explained_and_not_final() -> None:
    message = "E1 RESOURCE_EXHAUSTED: an array\nE1 *** SIGTERM received by PID 1"
    status = {"state": {"terminated": {"exitCode": 143, "message": message}}}
    broken = worker(0, 0, objects.pod, status=status, restarts=True)
    found = read(head(), broken, *WORKERS[1:])
    assert not found.is_hopeless
    assert "(HBM)" in found.reason


def test_pods_of_other_services_do_not_count() -> None:
    theirs = [objects.running(labels=labels(names.HEAD_JOB, service="other"))]
    assert not read(*theirs, *WORKERS).head_ready


def test_of_many_troubles_some_are_shown() -> None:
    big = service_of({"tpuv6e:2x2": 30})
    found = read(head(), service=big)
    assert len(found.troubles) == 30
    assert "and 22 more" in found.reason


def test_types_are_counted_apart() -> None:
    service = service_of({"tpuv6e:2x2": 1, "tpuv5e:2x2": 1})
    pods = [objects.running(container=names.WORKER_CONTAINER, labels=labels("worker"))]
    found = read(head(), *pods, service=service)
    assert found.ready_by_type == {"tpuv6e:2x2": 1, "tpuv5e:2x2": 0}
    assert found.suffices_for(("tpuv6e:2x2",))
    assert not found.suffices_for(("tpuv5e:2x2",))


def test_a_service_that_is_over_is_not_ready_whatever_its_pods_say() -> None:
    over = dataclasses.replace(SERVICE, ended="its JobSet is suspended")
    found = read(head(), *WORKERS, service=over)
    assert not found.complete
    assert not found.suffices_for(("tpuv6e:2x4",))
    assert found.reason == "its JobSet is suspended"


def test_the_log_adds_detail_and_proves_nothing() -> None:
    lines = ["*** 1/2 Pathways Slices Now Ready", "Pathways Server serving on [::]:29001"]
    events = [event for line in lines if (event := parse_line(line)) is not None]
    found = read_readiness(SERVICE, [head(), *WORKERS[:2]], events)
    assert found.reason.endswith("the resource manager's log says 1 of 2 slices are ready")
    assert read_readiness(SERVICE, [head(), *WORKERS], events).complete


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("tpuv5e:2x2",), "has no slice of tpuv5e:2x2"),
        (("tpuv6e:2x4",) * 3, "has 2 slices of tpuv6e:2x4, and 3 are requested"),
    ],
)
def test_a_request_that_the_service_can_never_meet(asked: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_instances(SERVICE, asked)
    assert caught.value.field == "expected_tpu_instances"
    assert says in caught.value.message
    assert "2 x tpuv6e:2x4" in caught.value.expected


def test_a_request_that_the_service_can_meet() -> None:
    check_instances(SERVICE, ("tpuv6e:2x4", "tpuv6e:2x4"))
    check_instances(SERVICE, ())
    check_instances(dataclasses.replace(SERVICE, instances={}), ("tpuv5e:2x2",))


def test_a_crash_loop_is_not_ready_between_its_crashes() -> None:
    message = "The specified bucket does not exist.; Error while initializing persistent cache"
    last = {
        "exitCode": 1,
        "message": message,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:01Z",
    }
    status = {**objects.RUNNING, "restartCount": 1, "lastState": {"terminated": last}}
    looping = worker(1, 0, objects.pod, ready=True, phase="Running", status=status)
    pods = [head(), *WORKERS[:2], looping, WORKERS[3]]
    began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()

    found = read_readiness(SERVICE, pods, now=began + 4.0)
    assert (found.ready, found.changes_in_s) == (1, 6.0)
    assert found.is_hopeless
    assert "the bucket of its --gcs_scratch_location does not exist" in found.reason

    found = read_readiness(SERVICE, pods, now=began + 10.0)
    assert found.complete
    assert (found.changes_in_s, found.settles_in_s) == (None, 0.0)


def test_all_pods_that_are_ready_have_to_survive_their_starts() -> None:
    state = {"running": {"startedAt": "2026-01-01T00:00:07Z"}}
    fresh = {"ready": True, "phase": "Running", "status": {**objects.RUNNING, "state": state}}
    began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
    fresh_head = [head(objects.pod, **fresh), *WORKERS]
    fresh_worker = [head(), *WORKERS[:3], worker(1, 1, objects.pod, **fresh)]
    for pods in (fresh_head, fresh_worker):
        found = read_readiness(SERVICE, pods, now=began + 11.0)
        assert found.complete
        assert (found.changes_in_s, found.settles_in_s) == (None, 6.0)
