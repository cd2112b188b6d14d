"""A host's executors: one at a time, gone with their assignment or their worker, without a file."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.embedded import eventually
from harness.processes import DEADLINE_S, REPOSITORY, is_gone
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.runtime.executor_lines import ExecutorTag, read_tagged
from shared_pathways_service.runtime.glog import json_line
from shared_pathways_service.servers.worker.executor_process import Assignment, ExecutorProcess
from shared_pathways_service.servers.worker.executor_supervisor import (
    Ended,
    ExecutorSupervisor,
    Serving,
)
from tests.servers.standing_in import StandIn

_KIND = InstanceType.parse("tpuv6e:2x4")


def assigned(generation: int, tenant: str = "ada", memory: int = 0) -> Assignment:
    return Assignment(
        tenant=tenant, generation=generation, instance_type=_KIND, memory_limit_bytes=memory
    )


class Host:
    """A supervisor with stand-ins; what it says is in `news` and `unfit`."""

    def __init__(self, root: Path, platform: str = "cpu", **options: Any) -> None:
        self.news: queue.SimpleQueue[Serving | Ended] = queue.SimpleQueue()
        self.unfit: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stand_in = StandIn(root, host_index=1, platform=platform)
        self.supervisor = ExecutorSupervisor(
            self.stand_in.command,
            slice_id="slice-3",
            host_index=1,
            report=self.news.put,
            on_unfit=self.unfit.put,
            **options,
        )

    def serving(self) -> Serving:
        news = self.news.get(timeout=DEADLINE_S)
        assert isinstance(news, Serving)
        return news

    def ended(self) -> Ended:
        news = self.news.get(timeout=DEADLINE_S)
        assert isinstance(news, Ended)
        return news


@pytest.fixture
def make_host(own_directories: Path) -> Iterator[Callable[..., Host]]:
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Host:
            host = Host(own_directories, **options)
            stack.callback(host.supervisor.close)
            return host

        yield make


@pytest.mark.real_starts
def test_an_executor_is_known_by_its_flags_and_has_nothing_else(
    make_host: Callable[..., Host], own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = own_directories / "service-token"
    secret.write_text("a service's token")
    monkeypatch.setenv("SPS_TOKEN_FILE", str(secret))
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    host = make_host()
    host.supervisor.assign(assigned(5, memory=1 << 30))
    serving = host.serving()
    (found,) = host.stand_in.started
    assert (serving.generation, serving.pid, serving.token) == (5, found["pid"], found["token"])
    assert found["instance_type"] == "tpuv6e:2x4"
    assert (found["host_index"], found["devices"]) == ("1", "4")
    assert (found["memory_limit"], found["server_port"]) == (str(1 << 30), "0")
    assert found["group"] == found["pid"] != os.getpid()
    assert found["directory"] == "/"
    assert "SPS_TOKEN_FILE" not in found["variables"]
    assert "TPU_WORKER_ID" not in found["variables"]
    assert (found["platform"], found["first_device"]) == ("cpu", "0")
    passed = {int(found["ready_fd"]), int(found["token_file"].removeprefix("/dev/fd/"))}
    # (One more is that of the listing itself.)
    assert len(set(found["descriptors"]) - passed - {0, 1, 2}) <= 1
    assert serving.token not in repr(serving)
    assert serving.token not in " ".join(psutil.Process(serving.pid).cmdline())
    # The same again changes nothing; a report is repeated when it is wanted.
    host.supervisor.assign(assigned(5, memory=0))
    host.supervisor.repeat_report()
    assert host.serving() == serving
    assert len(host.stand_in.started) == 1


def test_an_executor_on_tpus_has_the_variables_by_which_libtpu_knows_its_slice(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    host = make_host(platform="tpu")
    host.supervisor.assign(assigned(5))
    host.serving()
    (found,) = host.stand_in.started
    assert found["platform"] == "tpu"
    assert "TPU_WORKER_ID" in found["variables"]


def test_the_next_tenant_meets_nothing_of_the_last_one(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.stand_in.mode = "child"
    host.supervisor.assign(assigned(1))
    first = host.serving()
    # It cannot delay its end.
    psutil.Process(first.pid).suspend()
    host.supervisor.assign(assigned(2, tenant="bob"))
    second = host.serving()
    assert second.generation == 2
    assert second.token != first.token
    assert is_gone(first.pid)
    before, after = host.stand_in.started
    eventually(lambda: is_gone(before["child"]), "the child of the first to end")
    host.supervisor.assign(None)
    eventually(lambda: is_gone(second.pid), "the second to end")
    eventually(lambda: is_gone(after["child"]), "its child to end")
    assert host.news.empty(), "an end that was wanted is not reported"


def test_an_executor_that_ends_is_reported_and_not_started_again(
    make_host: Callable[..., Host],
) -> None:
    host = make_host()
    host.supervisor.assign(assigned(1))
    os.kill(host.serving().pid, signal.SIGKILL)
    assert host.ended() == Ended(
        generation=1, reason="was killed by signal 9 (out of memory?)", exit_code=-9
    )
    host.supervisor.assign(assigned(1))
    host.supervisor.repeat_report()
    assert host.ended() == Ended(
        generation=1, reason="was killed by signal 9 (out of memory?)", exit_code=-9
    )
    host.supervisor.assign(assigned(2))
    assert host.serving().generation == 2
    assert len(host.stand_in.started) == 2
    assert host.unfit.empty()


def test_a_placement_that_was_over_gets_no_second_executor(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.supervisor.assign(assigned(1))
    host.serving()
    host.supervisor.assign(assigned(2))
    host.serving()
    host.supervisor.assign(assigned(1))
    assert host.ended() == Ended(
        generation=1, reason="ended before: this placement was over", exit_code=-9
    )
    assert len(host.stand_in.started) == 2


@pytest.fixture(autouse=True)
def _exact_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    # They are in the reasons.
    monkeypatch.setenv("SPS_PATIENCE", "1")


def test_an_executor_that_was_told_to_end_is_reported_last(
    make_host: Callable[..., Host],
) -> None:
    host = make_host(with_connection=Timeout(0.2))
    host.stand_in.mode = "obey"
    host.supervisor.assign(assigned(1))
    os.kill(host.serving().pid, signal.SIGTERM)
    assert host.ended() == Ended(
        generation=1, reason="ended with the connection of its proxy", exit_code=0
    )
    host.supervisor.repeat_report()
    assert host.ended() == Ended(
        generation=1, reason="ended with the connection of its proxy", exit_code=0
    )


def test_the_end_of_a_placement_keeps_executors_that_were_told_to_end_from_being_reported(
    make_host: Callable[..., Host],
) -> None:
    host = make_host(with_connection=Timeout(DEADLINE_S))
    host.stand_in.mode = "obey"
    host.supervisor.assign(assigned(1))
    first = host.serving().pid
    os.kill(first, signal.SIGTERM)
    eventually(lambda: is_gone(first), "the executor to end")
    host.supervisor.repeat_report()
    host.supervisor.assign(assigned(2))
    found = host.serving()
    if found.generation == 1:
        # It was reported again before its end was noticed.
        found = host.serving()
    assert found.generation == 2


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("mute", "the executor did not serve within 0.5 s"),
        (
            "end:E1127 03:00:00.000001 7 b.py:2] no GPU",
            "the executor ended with exit code 7 before it served; its last line: no GPU",
        ),
        (
            "end:" + json_line("E", 0.0, "b.py:2", "no GPU\nhere"),
            "the executor ended with exit code 7 before it served; its last line: no GPU here",
        ),
    ],
    ids=["mute", "end", "end with a line of JSON"],
)
def test_a_host_whose_executor_does_not_serve_is_unfit(
    make_host: Callable[..., Host], mode: str, reason: str
) -> None:
    host = make_host(serve_within=Timeout(0.5 if mode == "mute" else 60.0))
    host.stand_in.mode = mode
    host.supervisor.assign(assigned(1))
    assert host.unfit.get(timeout=DEADLINE_S) == reason
    host.supervisor.assign(assigned(2))
    host.supervisor.close()
    assert host.unfit.empty()
    assert host.news.empty()
    assert all(is_gone(found["pid"]) for found in host.stand_in.started)


@pytest.mark.parametrize(
    ("left", "shown"),
    [(["python", "-m"], r"process \d+"), ("processes [7, 8]", r"processes \[7, 8\]")],
)
def test_a_host_whose_processes_cannot_be_killed_is_unfit(
    make_host: Callable[..., Host],
    monkeypatch: pytest.MonkeyPatch,
    left: list[str] | str,
    shown: str,
) -> None:
    host = make_host(end_within=Timeout(3.0))
    host.supervisor.assign(assigned(1))
    host.serving()
    kill = ExecutorProcess.kill

    def killed_late(process: ExecutorProcess, within_s: float) -> int:
        kill(process, DEADLINE_S)
        raise subprocess.TimeoutExpired(left, within_s)

    monkeypatch.setattr(ExecutorProcess, "kill", killed_late)
    host.supervisor.assign(None)
    reason = host.unfit.get(timeout=DEADLINE_S)
    assert re.fullmatch(rf"the executor was killed, but {shown} did not end in 3 s", reason)


def test_what_executors_write_becomes_tagged_lines_of_the_workers_log(
    make_host: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    host = make_host()
    host.stand_in.mode = "write"
    host.supervisor.assign(assigned(1))
    first = host.serving().pid
    host.supervisor.assign(assigned(2, tenant="bob"))
    second = host.serving().pid
    host.supervisor.close()
    found = [read_tagged(line) for line in capfd.readouterr().err.splitlines()]
    tagged = [one for one in found if one is not None]
    for tenant, generation, pid in (("ada", 1, first), ("bob", 2, second)):
        tag = ExecutorTag(tenant=tenant, slice_id="slice-3", host=1, generation=generation)
        written = [text for of, text in tagged if of == tag]
        assert written == [
            f"Process {pid} was started",
            "from stdout",
            *("x" * 3000, "x" * 3000, "x" * 1000),
            "last \ufffd, without an end",
            f"Process {pid} was killed by its worker",
        ]


def test_an_assignment_that_changes_during_a_start_ends_it(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.stand_in.mode = "mute"
    host.supervisor.assign(assigned(1))
    eventually(lambda: host.stand_in.started, "the first to start")
    host.stand_in.mode = ""
    host.supervisor.assign(assigned(2))
    assert host.serving().generation == 2
    assert is_gone(host.stand_in.started[0]["pid"])


def test_an_executor_dies_with_its_worker_and_leaves_no_file(own_directories: Path) -> None:
    root = own_directories / "temporary"
    root.mkdir()
    code = f"""
        import time
        from pathlib import Path
        from shared_pathways_service.servers.worker.executor_supervisor import ExecutorSupervisor
        from tests.servers.standing_in import StandIn
        from tests.servers.worker.test_executor_supervisor import assigned
        command = StandIn(Path({str(own_directories)!r})).command
        report = lambda news: print(news.pid, flush=True)
        ExecutorSupervisor(
            command, slice_id="slice-3", host_index=1, report=report, on_unfit=print
        ).assign(assigned(1))
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(root)},
    ) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert not is_gone(pid)
        worker.kill()
        worker.wait(DEADLINE_S)
        eventually(lambda: is_gone(pid), "the executor to die with its worker")
    assert not list(root.iterdir())
