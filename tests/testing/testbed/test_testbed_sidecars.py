"""Native sidecars start before the containers of their pod, and end after them."""

from __future__ import annotations

import base64
import functools
import re
from pathlib import Path
from typing import Any

from harness.deadlines import wait_until
from harness.testbed.pods import container, phase, pod, state
from shared_pathways_service.testing.testbed import Namespace, Object

SHARED = {"name": "shared", "emptyDir": {}}
MOUNTS = [{"name": "shared", "mountPath": "/shared"}]
#: Writes when its process began, in clock ticks: which shell writes first is not certain.
STARTS = "echo {} starts $(cut -d' ' -f22 /proc/$$$$/stat) >>/shared/log"
#: Waits until so many have started, and are prepared for their end.
HAVE_STARTED = "until [ $(grep -c starts /shared/log) = {} ]; do sleep 0.05; done 2>/dev/null"
PLAIN = "python:3.13-slim"
#: Finds nothing of this project, though the testbed runs it with this machine's interpreter.
LISTENS_LATE = """
import importlib.util, os, socket, time
assert all(importlib.util.find_spec(name) is None for name in ("shared_pathways_service", "jax"))
assert "PYTHONPATH" not in os.environ
time.sleep(1)
with socket.create_server(("127.0.0.1", 29002)) as server:
    print("listens", flush=True)
    while True:
        server.accept()[0].close()
"""
CONNECTS = 'import socket; socket.create_connection(("127.0.0.1", 29002)); print("connected")'


def sidecar(name: str, script: str, **fields: Any) -> Object:
    return container(script, name=name, restartPolicy="Always", **fields)


def recorder(name: str, last: str = "") -> Object:
    """A sidecar that records when it starts and when it is told to end."""
    told = f"echo {name} ends >>/shared/log; {last or ':'}; exit 0"
    script = f"trap '{told}' TERM; {STARTS.format(name)}; while :; do sleep 0.05; done"
    return sidecar(name, script, volumeMounts=MOUNTS)


def python(name: str, program: str, **fields: Any) -> Object:
    return {"name": name, "image": PLAIN, "command": ["python3", "-I", "-c", program], **fields}


def status_of(seen: Object, name: str) -> Object:
    found: Object = next(
        status
        for status in seen.get("status", {}).get("initContainerStatuses") or ()
        if status["name"] == name
    )
    return found


def has_restarted(name: str, seen: Object) -> bool:
    has_status = bool(seen.get("status", {}).get("initContainerStatuses"))
    return has_status and status_of(seen, name)["restartCount"] >= 2


def test_sidecars_start_in_order_and_end_in_reverse_after_the_containers(
    namespace: Namespace,
) -> None:
    script = f"{HAVE_STARTED.format(2)}; {STARTS.format('main')}; sleep 0.3"
    main = container(script, volumeMounts=MOUNTS)
    first, second = recorder("first", last="cat /shared/log"), recorder("second")
    spec = {"initContainers": [first, second], "volumes": [SHARED]}
    namespace.create("pods", pod("ordered", main, **spec, terminationGracePeriodSeconds=20))
    ended = namespace.wait_for_pod("ordered", lambda p: phase(p) == "Succeeded")
    assert all("terminated" in status_of(ended, name)["state"] for name in ("first", "second"))
    *starts, second_ends, first_ends = namespace.log("ordered", container="first").splitlines()
    assert (second_ends, first_ends) == ("second ends", "first ends")
    began = {line.partition(" ")[0]: int(line.rpartition(" ")[2]) for line in starts}
    assert sorted(began) == ["first", "main", "second"]
    assert began["first"] <= began["second"] <= began["main"]


def test_sidecars_of_a_deleted_pod_end_after_the_containers(
    namespace: Namespace, tmp_path: Path
) -> None:
    told = "trap 'sleep 0.3; echo main ends >>/shared/log; exit 0' TERM"
    up = f"{HAVE_STARTED.format(1)}; echo up >>/shared/log"
    main = container(f"{told}; {up}; while :; do sleep 0.05; done", volumeMounts=MOUNTS)
    volume = {"name": "shared", "hostPath": {"path": str(tmp_path)}}
    wanted = pod("deleted", main, initContainers=[recorder("beside")], volumes=[volume])
    wanted["spec"]["terminationGracePeriodSeconds"] = 60
    namespace.create("pods", wanted)
    log = tmp_path / "log"
    wait_until("its first words", lambda: log.exists() and "up" in log.read_text())
    namespace.delete("pods", "deleted")
    namespace.wait_until("pods", lambda left: not left, what="end of the pod")
    lines = [re.sub(r" \d+$", "", line) for line in log.read_text().splitlines()]
    assert lines == ["beside starts", "up", "main ends", "beside ends"]


def test_a_container_waits_for_the_startup_of_a_sidecar(namespace: Namespace) -> None:
    probe = {"tcpSocket": {"port": 29002}, "periodSeconds": 1, "failureThreshold": 60}
    late = python("late", LISTENS_LATE, restartPolicy="Always", startupProbe=probe)
    namespace.create("pods", pod("waits", python("main", CONNECTS), initContainers=[late]))
    namespace.wait_for_pod("waits", lambda p: phase(p) == "Succeeded")
    assert namespace.log("waits", container="late") == "listens\n"
    assert namespace.log("waits", container="main") == "connected\n"


def test_a_sidecar_that_does_not_start_is_restarted_and_waited_for(namespace: Namespace) -> None:
    probe = {"tcpSocket": {"port": 29002}, "periodSeconds": 1, "failureThreshold": 1}
    deaf = sidecar("deaf", "sleep 600", startupProbe=probe)
    absent = {**deaf, "name": "absent", "command": ["no-such-program"]}
    for name, one in (("deaf", deaf), ("absent", absent)):
        namespace.create("pods", pod(name, container("echo main"), initContainers=[one]))
    for name in ("deaf", "absent"):
        restarted = functools.partial(has_restarted, name)
        seen = namespace.wait_for_pod(name, restarted)
        assert phase(seen) == "Pending"
        assert status_of(seen, name)["started"] is False
        assert (state(seen, "waiting") or {}).get("reason") == "PodInitializing"


def test_a_container_waits_for_the_image_of_a_sidecar(namespace: Namespace) -> None:
    missing = {**sidecar("missing", "sleep 1"), "image": "r.io/none:no-such-tag"}
    namespace.create("pods", pod("no-image", container("echo"), initContainers=[missing]))
    seen = namespace.wait_for_pod(
        "no-image",
        lambda p: (
            p.get("status", {}).get("initContainerStatuses")
            and status_of(p, "missing")["state"].get("waiting", {}).get("reason")
            == "ImagePullBackOff"
        ),
    )
    assert state(seen, "waiting") is not None


def test_binary_data_of_a_config_map_is_a_file(namespace: Namespace) -> None:
    data = {"program": base64.b64encode(b"\x00\xff\n").decode()}
    namespace.create("configmaps", {"metadata": {"name": "bytes"}, "binaryData": data})
    volume = {"name": "v", "configMap": {"name": "bytes"}}
    mounts = [{"name": "v", "mountPath": "/opt/x", "readOnly": True}]
    reader = container("od -An -tx1 /opt/x/program", volumeMounts=mounts)
    namespace.create("pods", pod("reads", reader, volumes=[volume]))
    namespace.wait_for_pod("reads", lambda p: phase(p) == "Succeeded")
    assert namespace.log("reads").split() == ["00", "ff", "0a"]


def test_a_container_that_may_not_be_root_needs_a_user(namespace: Namespace) -> None:
    for name, user in (("unnamed", {}), ("root", {"runAsUser": 0}), ("nobody", {"runAsUser": 1})):
        security = {"runAsNonRoot": True, **user}
        namespace.create("pods", pod(name, container("echo", securityContext=security)))
    namespace.wait_for_pod("nobody", lambda p: phase(p) == "Succeeded")
    for name in ("unnamed", "root"):
        seen = namespace.wait_for_pod(name, lambda p: state(p, "waiting") is not None)
        assert (state(seen, "waiting") or {})["reason"] == "CreateContainerConfigError"
