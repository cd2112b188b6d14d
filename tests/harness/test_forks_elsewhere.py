"""A forked process in a container, or on another machine, is what a new one would be."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.fork_server.contained import PREFIX
from harness.layers.needed_programs import needed_program
from harness.machines import Machine, machine
from shared_pathways_service.testing.testbed.daemons import TIED_TO_PARENT
from shared_pathways_service.testing.testbed.launching import INSTALL_UTIL_LINUX
from shared_pathways_service.testing.testbed.node_agent.container import (
    Container,
    LogFile,
    find_isolation,
)
from tests.harness.comparisons import REPORT, both

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.environ.get("SPS_TEST_FORKS") == "0", reason="without forks"
    ),
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root has containers without a namespace of users"
    ),
]


class Contained:
    """Containers of the testbed, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.isolation = find_isolation()

    async def start(self, source: str, **env: str) -> Container:
        return await Container.start(
            [sys.executable, "-P", "-c", source, "a"],
            env={"PATH": os.environ["PATH"], **env},
            directory=self._directory,
            log=LogFile(self._directory / "log"),
            isolation=self.isolation,
        )

    def run(self, source: str, **env: str) -> tuple[int, list[str]]:
        """Runs a program; returns its exit code, and its lines without their times."""

        async def run() -> int:
            return await (await self.start(source, **env)).wait()

        code = asyncio.run(run())
        lines = (self._directory / "log").read_text().splitlines()
        return code, [line.partition(" ")[2] for line in lines]


@pytest.fixture
def contained(tmp_path: Path) -> Contained:
    needed_program("setpriv", INSTALL_UTIL_LINUX)
    found = Contained(tmp_path)
    assert (*TIED_TO_PARENT, *found.isolation.prefix) == PREFIX
    return found


_IN_CONTAINER = """
import os, re
status = open("/proc/self/status").read()
pids = [name for name in os.listdir("/proc") if name.isdigit()]
mounts = {line.split()[2]: line.split()[5] for line in open("/proc/mounts") if " /proc " in line}
shared = [line for line in open("/proc/self/mountinfo") if "shared:" in line]
print(os.getpid(), os.getppid(), os.getsid(0), os.getpgrp(), len(pids), shared)
print(re.findall("Sig(?:Blk|Ign):.*", status), sorted(os.environ), os.getcwd())
print(open("/proc/self/cmdline").read(), open("/proc/self/mounts").read().splitlines()[-1])
"""


@pytest.mark.usefixtures("contained", "is_forked")
def test_a_container_sees_the_same(contained: Contained) -> None:
    source = REPORT.replace('"parent": os.getppid()', '"parent": os.getppid(), "pid": os.getpid()')
    for program in (_IN_CONTAINER, source):
        forked, real = both(functools.partial(contained.run, program, OWN="ä"))
        assert forked == real
        assert forked[0] == 0


@pytest.mark.usefixtures("contained", "is_forked")
@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(7)",
        "import os, signal; os.kill(1, signal.SIGKILL)",
        "import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(1, signal.SIGTERM)",
        "import os, sys; sys.stderr.write('no end of line'); os.abort()",
        "import os, sys\nif os.fork() == 0:\n    os.execvp('sleep', ['sleep', '1000'])",
    ],
)
def test_a_container_ends_the_same(contained: Contained, source: str) -> None:
    forked, real = both(functools.partial(contained.run, source))
    assert forked == real


@pytest.mark.usefixtures("contained", "is_forked")
def test_a_container_that_is_killed_ends_the_same(contained: Contained) -> None:
    async def run() -> int:
        container = await contained.start("import time; time.sleep(1000)")
        await container.wait_for_process_1()
        container.kill()
        return await container.wait()

    forked, real = both(lambda: asyncio.run(run()))
    assert forked == real
    assert forked == 128 + signal.SIGKILL


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Machine]:
    with machine("elsewhere", tmp_path) as running:
        yield running


_ON_MACHINE = """
import os, platform, subprocess, sys
print(platform.node(), os.getcwd(), os.environ["PWD"], os.getppid(), os.getpgrp(), os.getsid(0))
print(open("/proc/sys/kernel/random/boot_id").read(), open("/proc/1/cmdline").read(), sys.argv)
print(os.readlink("/proc/self").isdigit(), int(os.readlink("/proc/self")) == os.getpid())
inner = "import os, sys; print(os.getpgrp(), os.getppid() == int(sys.argv[1]))"
command = [sys.executable, "-c", inner, str(os.getpid())]
print(subprocess.check_output(command, text=True))
"""


@pytest.mark.usefixtures("is_forked")
def test_a_program_on_a_machine_sees_the_same(elsewhere: Machine, tmp_path: Path) -> None:
    command = [*elsewhere.prefix(tmp_path), sys.executable, "-c", _ON_MACHINE, "a"]
    forked, real = both(functools.partial(subprocess.check_output, command, text=True))
    assert forked == real
    assert forked.startswith(f"elsewhere {tmp_path} {tmp_path} 0 ")


@pytest.mark.usefixtures("is_forked")
@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os.abort()",
        "import os, signal; signal.signal(13, signal.SIG_DFL); os.kill(os.getpid(), 13)",
    ],
)
def test_a_program_on_a_machine_ends_the_same(elsewhere: Machine, source: str) -> None:
    command = [*elsewhere.prefix(), sys.executable, "-c", source]
    forked, real = both(lambda: subprocess.run(command, check=False).returncode)
    assert forked == real != 0


@pytest.mark.usefixtures("is_forked")
def test_a_machine_that_has_ended_is_named(elsewhere: Machine) -> None:
    command = [*elsewhere.prefix(), sys.executable, "-c", "pass"]
    [target] = [word.partition("=")[2] for word in command if word.startswith("--target=")]
    elsewhere.fail()

    def run() -> tuple[int, bool]:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        text = done.stderr
        return done.returncode, "No such file" in text and f"/proc/{target}/ns/" in text

    assert both(run) == ((1, True), (1, True))


@pytest.mark.usefixtures("is_forked")
def test_a_program_ends_with_its_machine(elsewhere: Machine) -> None:
    source = "print('runs', flush=True); import time; time.sleep(1000)"
    command = [*elsewhere.prefix(), sys.executable, "-c", source]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            elsewhere.fail()
            assert process.wait(deadline(60.0)) == -signal.SIGKILL
        finally:
            process.kill()
