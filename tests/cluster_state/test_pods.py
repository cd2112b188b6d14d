from __future__ import annotations

import datetime

import pytest

from shared_pathways_service.cluster_state.pods import Trouble, exit_code_of, pod_state
from tests.cluster_state import objects
from tests.cluster_state.objects import RUNNING, Object

CONTAINER = "pathways-proxy"


def test_a_pod_that_runs_has_no_trouble() -> None:
    state = pod_state(objects.running("p-1"), CONTAINER)
    assert (state.name, state.uid, state.node) == ("p-1", "uid-p-1", "node-1")
    assert state.ready
    assert state.trouble is Trouble.NONE
    assert str(state) == "p-1: ready"


@pytest.mark.parametrize(
    ("pod", "trouble", "says", "final"),
    [
        (objects.unschedulable(message="0/3 nodes: no TPU"), "unschedulable", "no TPU", False),
        (objects.pod(node=""), "starting", "waits for a node", False),
        (objects.pod(), "starting", "node-1", False),
        (objects.waiting("ContainerCreating"), "starting", "started", False),
        (objects.pod(status={"state": {"running": {}}}), "starting", "not ready yet", False),
        (objects.waiting("ErrImagePull", "i/o timeout"), "image", "i/o timeout", False),
        (objects.waiting("ImagePullBackOff", "Back-off pulling"), "image", "r.io/x:1", False),
        (objects.waiting("ErrImagePull", "manifest unknown"), "image", "manifest", True),
        (objects.waiting("ImagePullBackOff", "x: not found"), "image", "not found", True),
        (objects.waiting("ErrImagePull", "403 Forbidden"), "image", "403", True),
        (objects.waiting("InvalidImageName"), "image", "InvalidImageName", True),
        (objects.waiting("CreateContainerConfigError", "runs as root"), "config", "root", True),
        (objects.ended(3), "crashed", "exit code 3", True),
        (objects.ended(137), "crashed", "signal 9", True),
        (objects.ended(3, restarts=True), "crashed", "exit code 3", False),
        (objects.ended(0), "ended", "ended", True),
        (objects.disrupted("EvictionByEvictionAPI", "drained"), "evicted", "drained", True),
        (objects.disrupted("PreemptionByScheduler"), "evicted", "node-1", True),
        (objects.disrupted("DeletionByTaintManager"), "node_lost", "node-1 was lost", True),
        (objects.disrupted("DeletionByPodGC"), "node_lost", "node-1 was lost", True),
        (objects.pod(status=RUNNING, phase="Running"), "node_lost", "does not answer", False),
        (objects.pod(status=RUNNING, ready=True, deleted=True), "deleted", "deleted", True),
        (objects.ended(0, deleted=True), "deleted", "deleted", True),
        (objects.ended(3, deleted=True), "deleted", "deleted", True),
        (
            objects.pod(
                phase="Failed", more_status={"reason": "OutOfcpu", "message": "Node has no cpu"}
            ),
            "crashed",
            "OutOfcpu: Node has no cpu",
            True,
        ),
        (
            objects.pod(phase="Failed", more_status={"reason": "Evicted", "message": "low disk"}),
            "evicted",
            "low disk",
            True,
        ),
        (
            # (Its end is known before anybody deletes it.)
            objects.pod(phase="Failed", deleted=True, more_status={"reason": "OutOfcpu"}),
            "crashed",
            "OutOfcpu",
            True,
        ),
    ],
)
def test_what_is_amiss_is_said(pod: Object, trouble: str, says: str, final: bool) -> None:
    state = pod_state(pod, CONTAINER)
    assert state.trouble == trouble
    assert says in state.reason
    assert state.final is final
    assert not state.ready


def test_a_crash_loop_shows_its_last_end() -> None:
    last = {"terminated": {"exitCode": 2, "reason": "Error", "message": "usage: ...\n"}}
    pod = objects.pod(
        restarts=True,
        status={
            "restartCount": 4,
            "lastState": last,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        },
    )
    state = pod_state(pod, CONTAINER)
    assert (state.trouble, state.exit_code, state.final) == (Trouble.CRASHED, 2, False)
    assert "4 restarts" in state.reason
    assert "exit code 2" in state.reason
    assert state.message == "usage: ...\n"


BEGAN_AGAIN = datetime.datetime(2026, 1, 1, 0, 0, 9, tzinfo=datetime.UTC).timestamp()


def restarted(lasted_s: int, exit_code: int, reason: str = "Error") -> Object:
    """A pod that runs again since `BEGAN_AGAIN`, ready as far as its kubelet knows."""
    last = {
        "exitCode": exit_code,
        "reason": reason,
        "message": "no bucket\n",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": f"2026-01-01T00:00:{lasted_s:02}Z",
    }
    status = {
        "ready": True,
        "restartCount": 4,
        "lastState": {"terminated": last},
        "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}},
    }
    return objects.pod(ready=True, phase="Running", restarts=True, status=status)


@pytest.mark.parametrize(
    ("lasted_s", "exit_code", "reason", "age_s", "is_ready", "settles_in_s"),
    [
        (1, 2, "Error", 0.0, False, 10.0),
        (10, 2, "Error", 9.5, False, 0.5),
        (1, 137, "OOMKilled", 1.0, False, 9.0),
        # It aborted itself.
        (1, 134, "Error", 1.0, False, 9.0),
        (1, 2, "Error", 10.0, True, 0.0),
        (11, 2, "Error", 0.0, True, 10.0),
        (1, 0, "Completed", 0.0, True, 10.0),
        (1, 137, "Error", 0.0, True, 10.0),
        # Times have whole seconds.
        (1, 2, "Error", -0.5, False, 10.5),
        # The clocks differ.
        (1, 2, "Error", -1.5, True, 0.0),
    ],
)
def test_what_crashed_at_its_start_is_ready_only_after_a_while(
    lasted_s: int, exit_code: int, reason: str, age_s: float, is_ready: bool, settles_in_s: float
) -> None:
    pod = restarted(lasted_s, exit_code, reason)
    state = pod_state(pod, CONTAINER, now=BEGAN_AGAIN + age_s)
    assert (state.ready, state.settles_in_s) == (is_ready, settles_in_s)
    if is_ready:
        assert state.trouble is Trouble.NONE
    else:
        assert state.trouble is Trouble.CRASHED
        assert "4 restarts" in state.reason
        assert state.message == "no bucket\n"
        assert not state.final
    assert pod_state(pod, CONTAINER).ready


def test_a_first_start_is_ready_at_once_and_has_not_survived_yet() -> None:
    pod = objects.running()
    began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
    for age_s, settles_in_s in ((4.0, 6.0), (10.0, 0.0)):
        state = pod_state(pod, CONTAINER, now=began + age_s)
        assert (state.ready, state.settles_in_s) == (True, settles_in_s)


def test_too_much_memory_is_named() -> None:
    status = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    state = pod_state(objects.pod(phase="Failed", status=status), CONTAINER)
    assert "memory" in state.reason
    assert state.exit_code == -9


@pytest.mark.parametrize(
    ("terminated", "code"),
    [
        ({"exitCode": 0}, 0),
        ({"exitCode": 69}, 69),
        ({"exitCode": 128}, 128),
        ({"exitCode": 143}, -15),
        ({"exitCode": 255}, 255),
        ({"exitCode": 1, "signal": 11}, -11),
        ({}, None),
    ],
)
def test_exit_codes(terminated: Object, code: int | None) -> None:
    assert exit_code_of(terminated) == code


def test_a_server_that_is_an_init_container_counts() -> None:
    pod = objects.running(container="main")
    pod["status"]["initContainerStatuses"] = [{"name": CONTAINER, **RUNNING}]
    assert pod_state(pod, CONTAINER).ready


def test_a_blocking_init_container_is_named() -> None:
    pod = objects.waiting("PodInitializing")
    stuck = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    pod["status"]["initContainerStatuses"] = [{"name": "setup", "image": "a/b", "state": stuck}]
    state = pod_state(pod, CONTAINER)
    assert state.trouble is Trouble.IMAGE
    assert "a/b" in state.reason


@pytest.mark.parametrize("code", [0, 3])
def test_a_container_that_has_ended_waits_for_no_init_container(code: int) -> None:
    pod = objects.ended(code)
    # (A sidecar gets its signal after the main container has ended.)
    killed = {"terminated": {"exitCode": 137}}
    pod["status"]["initContainerStatuses"] = [{"name": "sps-link", "state": killed}]
    state = pod_state(pod, CONTAINER)
    assert (state.container, state.exit_code) == (CONTAINER, code)


@pytest.mark.parametrize("pod", [{}, {"metadata": None, "spec": None, "status": None}])
def test_a_pod_of_which_nothing_is_known_yet_is_starting(pod: Object) -> None:
    assert pod_state(pod, CONTAINER).trouble is Trouble.STARTING
