"""The memory that a process may use: the machine's, or that of the control groups around it."""

from __future__ import annotations

import os

import pytest

from shared_pathways_service.flags.limits import default_host_memory
from shared_pathways_service.runtime.machine_memory import usable_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V1 = "5:devices:/a\n4:memory,hugetlb:/slurm/job_7/step_0\n1:name=systemd:/\n"
V2 = "0::/user.slice/user-7.slice/session-2.scope\n"
HYBRID = f"{V1}0::/init.scope\n"


def memory(files: dict[str, str]) -> int:
    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    return usable_memory(read)


def in_v1(own: str, group: str, text: str) -> dict[str, str]:
    return {
        "/proc/self/cgroup": own,
        f"/sys/fs/cgroup/memory/{group}memory.limit_in_bytes": text,
    }


def in_v2(own: str, group: str, text: str) -> dict[str, str]:
    return {"/proc/self/cgroup": own, f"/sys/fs/cgroup/{group}memory.max": text}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(in_v2("0::/\n", "", "2048\n"), id="a container"),
        pytest.param(in_v2(V2, "user.slice/user-7.slice/", "2048\n"), id="the user's slice"),
        pytest.param(
            in_v2(V2, "user.slice/user-7.slice/session-2.scope/", "2048\n"), id="its own scope"
        ),
        pytest.param(in_v2("0::/../../host\n", "", "2048\n"), id="moved out of its namespace"),
        pytest.param(in_v1(V1, "slurm/job_7/", "2048\n"), id="a batch job, v1"),
        pytest.param(in_v1(V1, "", "2048\n"), id="a container that sees the host's name, v1"),
        pytest.param(in_v1(HYBRID, "slurm/job_7/step_0/", "2048\n"), id="both versions mounted"),
        pytest.param({"/sys/fs/cgroup/memory.max": "2048\n"}, id="no /proc"),
    ],
)
def test_the_limit_of_a_group_around_the_process_counts(files: dict[str, str]) -> None:
    assert memory(files) == 2048


def test_the_lowest_limit_counts() -> None:
    limits = [("", "8192"), ("user.slice/", "max"), ("user.slice/user-7.slice/", "4096")]
    files = {"/proc/self/cgroup": V2}
    files.update({f"/sys/fs/cgroup/{group}memory.max": text for group, text in limits})
    assert memory(files) == 4096


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="no groups"),
        pytest.param(in_v2(V2, "", "max\n"), id="none, v2"),
        pytest.param(in_v1(V1, "", f"{(1 << 63) - 4096}\n"), id="none, v1"),
        pytest.param(in_v2(V2, "system.slice/", "2048\n"), id="of another group"),
        pytest.param(in_v1("4:cpu:/a\n", "a/", "2048\n"), id="of a group with another controller"),
    ],
)
def test_without_a_limit_it_is_the_machines(files: dict[str, str]) -> None:
    assert memory(files) == MACHINE


def test_half_of_it_is_for_a_proxys_host_buffers() -> None:
    assert default_host_memory() == usable_memory() // 2
