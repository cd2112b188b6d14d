"""Pods are processes: they start, restart, end, and are told what Kubernetes would tell them."""

from __future__ import annotations

import base64
import functools
import os
import signal

import psutil
import pytest

from harness.deadlines import wait_until
from harness.testbed.pods import STUBBORN, container, exit_code, phase, pod, since, state
from shared_pathways_service.testing.testbed import Namespace, Object


def run_to_end(namespace: Namespace, wanted: Object) -> Object:
    """Creates a pod, and returns it when it has ended."""
    namespace.create("pods", wanted)
    return namespace.wait_for_pod(
        wanted["metadata"]["name"], lambda p: phase(p) in ("Succeeded", "Failed")
    )


def test_container_ends_with_its_code_and_log(namespace: Namespace) -> None:
    ended = run_to_end(namespace, pod("fails", container("echo out; echo err >&2; exit 7")))
    assert phase(ended) == "Failed"
    assert exit_code(ended) == 7
    assert sorted(namespace.log("fails").splitlines()) == ["err", "out"]
    ended = run_to_end(namespace, pod("works", container("exit 0")))
    assert (phase(ended), exit_code(ended)) == ("Succeeded", 0)


def test_signal_is_an_exit_code(namespace: Namespace) -> None:
    ended = run_to_end(namespace, pod("killed", container("sh -c 'kill -9 $PPID' & wait")))
    # Process 1 of a namespace cannot be killed from inside; without one it is.
    assert exit_code(ended) in (0, 137)


def test_container_that_is_killed_from_outside_says_so(namespace: Namespace) -> None:
    namespace.create("pods", pod("shot", container("echo up; sleep 600")))
    namespace.wait_for_pod("shot", lambda p: phase(p) == "Running")
    wait_until("its first words", lambda: namespace.log("shot") == "up\n")
    os.kill(namespace.processes()["shot"]["main"], signal.SIGKILL)
    ended = namespace.wait_for_pod("shot", lambda p: phase(p) == "Failed")
    assert exit_code(ended) == 137
    assert namespace.log("shot") == "up\n"


def test_container_is_process_1_and_sees_only_its_own(namespace: Namespace) -> None:
    run_to_end(namespace, pod("who", container("echo $$$$; ls -d /proc/[0-9]* | wc -l")))
    first, processes = namespace.log("who").split()
    if first != "1":
        pytest.skip("this machine permits no PID namespaces")
    assert int(processes) <= 4


def test_environment_and_arguments(namespace: Namespace) -> None:
    variables = [
        {"name": "A", "value": "a"},
        {"name": "AB", "value": "$(A)b $$(A) $(NONE)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['role']"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    script = container('echo "$AB|$POD|$ROLE|$NODE|$IP|$(A)"', env=variables)
    wanted = pod("told", script)
    wanted["metadata"]["labels"] = {"role": "x"}
    ended = run_to_end(namespace, wanted)
    expected = ["ab $(A) $(NONE)", "told", "x", namespace.nodes[0], ended["status"]["podIP"], "a"]
    assert namespace.log("told").strip().split("|") == expected


def test_secret_that_comes_later_is_a_file_for_its_owner(namespace: Namespace) -> None:
    volume = {"name": "v", "secret": {"secretName": "token", "defaultMode": 0o400}}
    mount = {"name": "v", "mountPath": "/var/run/secrets/x"}
    reader = container(
        "cat $FILE; stat -c %a $FILE",
        env=[{"name": "FILE", "value": "/var/run/secrets/x/token"}],
        volumeMounts=[mount],
    )
    namespace.create("pods", pod("reads", reader, volumes=[volume]))
    namespace.wait_until(
        "events", lambda seen: [e for e in seen if e["reason"] == "FailedMount"], what="complaint"
    )
    secret = {"metadata": {"name": "token"}, "data": {"token": base64.b64encode(b"s3\n").decode()}}
    namespace.create("secrets", secret)
    namespace.wait_for_pod("reads", lambda p: phase(p) == "Succeeded")
    assert namespace.log("reads").split() == ["s3", "400"]


def test_init_containers_go_first_and_sidecars_go_on(namespace: Namespace) -> None:
    shared = [{"name": "shared", "mountPath": "/shared"}]
    says = "echo beside; touch /shared/said; sleep 1000"
    sidecar = container(says, name="beside", restartPolicy="Always", volumeMounts=shared)
    once = container("echo before", name="before")
    main = container("until [ -e /shared/said ]; do sleep 0.1; done", volumeMounts=shared)
    spec = {"initContainers": [sidecar, once], "volumes": [{"name": "shared", "emptyDir": {}}]}
    namespace.create("pods", pod("three", main, **spec))
    ended = namespace.wait_for_pod("three", lambda p: phase(p) == "Succeeded")
    beside, before = ended["status"]["initContainerStatuses"]
    assert "running" in beside["state"] or "terminated" in beside["state"]
    assert before["state"]["terminated"]["exitCode"] == 0
    assert namespace.log("three", container="before") == "before\n"
    assert namespace.log("three", container="beside") == "beside\n"


def test_failing_init_container_fails_the_pod(namespace: Namespace) -> None:
    namespace.create(
        "pods", pod("stuck", container("echo no"), initContainers=[container("exit 3", name="i")])
    )
    ended = namespace.wait_for_pod("stuck", lambda p: phase(p) == "Failed")
    assert state(ended, "waiting") is not None


def test_a_containers_last_words(namespace: Namespace) -> None:
    # As the kubelet has it: the file, else the end of the log of what failed, if that is asked for.
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    speaks = "printf last >$FILE; echo logged; exit 3"
    variables = [{"name": "FILE", "value": "/dev/termination-log"}]
    elsewhere = [{"name": "FILE", "value": "/words"}]
    for name, main, told in (
        ("speaks", container(speaks, env=variables, **policy), "last"),
        ("elsewhere", container(speaks, env=elsewhere, terminationMessagePath="/words"), "last"),
        ("logs", container("echo logged; exit 3", **policy), "logged"),
        ("silent", container("echo logged; exit 3"), None),
    ):
        namespace.create("pods", pod(name, main))
        ended = namespace.wait_for_pod(name, lambda p: phase(p) == "Failed")
        assert (state(ended, "terminated") or {}).get("message") == told


def test_crash_loop(namespace: Namespace) -> None:
    namespace.create("pods", pod("loops", container("echo once; exit 3"), restartPolicy="Always"))
    looping = namespace.wait_for_pod(
        "loops",
        lambda p: (
            (state(p, "waiting") or {}).get("reason") == "CrashLoopBackOff"
            and p["status"]["containerStatuses"][0]["restartCount"] >= 1
        ),
    )
    status = looping["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert phase(looping) == "Running"
    assert namespace.log("loops", previous="true") == "once\n"


@pytest.mark.parametrize("image", ["nowhere.example/thing:1", "x/pathways/server:no-such-tag"])
def test_image_that_cannot_be_pulled(namespace: Namespace, image: str) -> None:
    seen = namespace.create("pods", pod("pulls", {"name": "main", "image": image}))
    # (The first reason is there for a second only.)
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        seen = since(namespace, seen, functools.partial(_waits_for, reason))
        assert phase(seen) == "Pending"
        waiting = state(seen, "waiting")
        assert waiting is not None
        assert image in waiting["message"]


def _waits_for(reason: str, seen: Object) -> bool:
    return (state(seen, "waiting") or {}).get("reason") == reason


def test_deleted_pod_has_its_grace(namespace: Namespace) -> None:
    namespace.create("pods", pod("slow", container(STUBBORN), terminationGracePeriodSeconds=2))
    running = namespace.wait_for_pod("slow", lambda p: phase(p) == "Running")
    pid = namespace.processes()["slow"]["main"]
    namespace.delete("pods", "slow")
    ending = since(namespace, running, lambda p: "deletionTimestamp" in p["metadata"])
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 2
    # It hears of it, and goes on until it is killed.
    namespace.wait_until("pods", lambda left: not left, what="end of the pod")
    assert not psutil.pid_exists(pid)


def test_deleted_pod_that_obeys_is_gone_at_once(namespace: Namespace) -> None:
    obeys = container("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
    namespace.create("pods", pod("fast", obeys, terminationGracePeriodSeconds=600))
    namespace.wait_for_pod("fast", lambda p: phase(p) == "Running")
    # The kernel drops a signal that process 1 of a namespace has no handler for yet.
    wait_until("its first words", lambda: namespace.log("fast") == "up\n")
    namespace.delete("pods", "fast")
    namespace.wait_until("pods", lambda left: not left, what="end of the pod")
    assert namespace.processes() == {}


def test_deleted_pod_waits_for_nothing_any_more(namespace: Namespace) -> None:
    volume = {"name": "v", "secret": {"secretName": "never"}}
    spec = {"volumes": [volume], "terminationGracePeriodSeconds": 600}
    namespace.create("pods", pod("waits", container("echo no"), **spec))
    namespace.wait_until(
        "events",
        lambda events: any(event["reason"] == "FailedMount" for event in events),
        what="news of the Secret that is missing",
    )
    namespace.delete("pods", "waits")
    namespace.wait_until("pods", lambda left: not left, what="end of the pod")


def test_each_pod_has_an_address_of_its_own(namespace: Namespace) -> None:
    serve = container("exec python -m http.server --bind $IP 29000")
    serve["env"] = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    serve["readinessProbe"] = {"tcpSocket": {"port": 29000}}
    for name in ("one", "two"):
        namespace.create("pods", pod(name, serve))

    def ready(seen: Object) -> bool:
        conditions = seen.get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    addresses = {namespace.wait_for_pod(name, ready)["status"]["podIP"] for name in ("one", "two")}
    assert len(addresses) == 2
