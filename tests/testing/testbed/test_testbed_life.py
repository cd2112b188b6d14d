"""A testbed of its own: it outlives its API server, and nothing of it outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.layers.thorough import thorough
from harness.processes import REPOSITORY
from harness.testbed.pods import container, phase, pod
from harness.testbed.programs import CACHE_DIR
from shared_pathways_service.testing.testbed import (
    ApiRefused,
    Testbed,
    TestbedError,
    deploy_service,
    new_namespace,
)
from shared_pathways_service.testing.testbed.build import Programs
from tests.testing.testbed.leftovers import processes_of, still_there

pytestmark = pytest.mark.race

OWNER = """
import sys
import time
from pathlib import Path
from shared_pathways_service.testing.testbed import Testbed
with Testbed.start(cache_dir=Path(sys.argv[1])) as testbed:
    testbed.add_pools({}, cpu_nodes=1)
    print(testbed.directory, flush=True)
    sys.stdin.read()
"""


def test_pods_outlive_the_api_server(disturbed_testbed: Testbed, tmp_path: Path) -> None:
    with new_namespace(disturbed_testbed, pools={"tpuv6e:2x2": 1}) as namespace:
        service = deploy_service(namespace, {"tpuv6e:2x2": 1})
        ends = container(
            "until [ -e /shared/end ]; do sleep 0.1; done; exit 5",
            volumeMounts=[{"name": "shared", "mountPath": "/shared"}],
        )
        volume = {"name": "shared", "hostPath": {"path": str(tmp_path)}}
        namespace.create("pods", pod("ends", ends, volumes=[volume]))
        namespace.wait_for_pod("ends", lambda p: phase(p) == "Running")
        before = namespace.processes()
        disturbed_testbed.kill_api_server()
        with pytest.raises(ApiRefused, match="Unreachable"):
            namespace.items("pods")
        (tmp_path / "end").touch()
        wait_until("the end of a pod", lambda: "ends" not in namespace.processes())
        disturbed_testbed.start_api_server()
        # What happened meanwhile is told.
        namespace.wait_for_pod("ends", lambda p: phase(p) == "Failed")
        after = namespace.processes()
        assert after == {name: pids for name, pids in before.items() if name != "ends"}
        assert "1/1 Pathways Slices Now Ready" in service.log()


#: (What `sps testbed up` stops is such a testbed, too: test_testbed_cli.py.)
@pytest.mark.thorough
def test_stopped_testbed_leaves_nothing(testbed_programs: Programs) -> None:
    del testbed_programs  # they are there
    with Testbed.start(cache_dir=CACHE_DIR) as testbed:
        directory = testbed.directory
        processes = processes_of(directory)
        assert len(processes) >= 7
    assert not directory.exists()
    assert still_there(processes) == []
    with pytest.raises(TestbedError, match="no testbed runs"):
        Testbed.attach(directory)


@pytest.mark.parametrize("victim", ["owner", *thorough("testbed")])
def test_killed_testbed_leaves_no_process(testbed_programs: Programs, victim: str) -> None:
    del testbed_programs  # they are there
    command = [sys.executable, "-c", OWNER, str(CACHE_DIR)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        processes = processes_of(directory)
        [testbed] = [p for p in processes if "testing.testbed" in " ".join(p.cmdline())]
        os.kill(owner.pid if victim == "owner" else testbed.pid, signal.SIGKILL)
        # One that was killed stays, in name, as long as its living parent does not ask.
        assert still_there([p for p in processes if p != testbed]) == []
        owner.communicate()
    # Whoever is left of the two cleans up.
    assert still_there([testbed]) == []
    assert not directory.exists()
