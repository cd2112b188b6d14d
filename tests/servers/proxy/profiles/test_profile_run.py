"""A profile is bounded in time and bytes, and goes on without a process that is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import xplane_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.memory import HostMemory
from shared_pathways_service.servers.proxy.profiles.clocks import Offset, Sample
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.profile_run import Profile
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels, RecordedProcess

RAW = xplane_pb2.XSpace(planes=[xplane_pb2.XPlane(name="/host:CPU")]).SerializeToString()


class Process:
    """A process whose profile is `raw`, or that fails at a call."""

    def __init__(self, name: str, *, raw: bytes = RAW, fails_at: str = "") -> None:
        self.name = name
        self.file = name
        self.devices: Sequence[Device] = ()
        self.samples: list[Sample] = []
        self.calls: list[str] = []
        self.most_bytes = 0
        self._raw = raw
        self._fails_at = fails_at

    def start(self, levels: Levels) -> futures.Future[None]:
        assert levels == Levels()
        return self._call("start", None)

    def read_clock(self) -> futures.Future[None]:
        self.samples.append(Sample(10, 25, 20))
        return self._call("clock", None)

    def stop(self, most_bytes: int) -> futures.Future[bytes]:
        self.most_bytes = most_bytes
        return self._call("stop", self._raw)

    def drop(self) -> None:
        self.calls.append("drop")

    def _call(self, what: str, result: Any) -> futures.Future[Any]:
        self.calls.append(what)
        future: futures.Future[Any] = futures.Future()
        if what == self._fails_at:
            future.set_exception(StatusError(Code.DATA_LOSS, "the executor has ended"))
        else:
            future.set_result(result)
        return future


class Rig:
    """Profiles of given processes."""

    def __init__(self) -> None:
        self.memory = HostMemory(10_000)
        self.ended = threading.Event()
        self.ends = 0
        self.made: list[Profile] = []

    def start(self, *processes: RecordedProcess, most_s: float = 600.0) -> Profile:
        def end() -> None:
            self.ends += 1
            self.ended.set()

        profile = Profile(processes, most_s=most_s, most_bytes=1000, memory=self.memory, on_end=end)
        self.made.append(profile)
        profile.start(Levels())
        return profile


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    for profile in made.made:
        profile.drop()
    assert made.memory.held == 0


def names(profile: Profile) -> list[str]:
    return [name for name, _ in profile.files(0, Offset())]


def test_files_of_all_processes(rig: Rig) -> None:
    first, second = Process("a"), Process("b")
    profile = rig.start(first, second)
    assert "stop" not in first.calls
    assert rig.ends == 0
    profile.finish()
    profile.finish()
    assert rig.ends == 1
    assert first.calls == ["start", *["clock"] * 8, "stop"]
    assert names(profile) == ["b.xplane.pb", "a.xplane.pb"]
    assert profile.notes == []
    # Each gets an equal part of the limit.
    assert (first.most_bytes, second.most_bytes) == (500, 500)
    assert rig.memory.held == 2 * len(RAW)


@pytest.mark.parametrize("when", ["start", "clock", "stop"])
def test_a_process_that_is_lost_is_left_out(rig: Rig, when: str) -> None:
    lost, other = Process("lost", fails_at=when), Process("other")
    profile = rig.start(lost, other)
    profile.finish()
    assert names(profile) == ["other.xplane.pb"]
    assert profile.notes == ["the profile has no planes of lost: the executor has ended"]
    assert lost.calls[-1] == "drop"


def test_nothing_can_be_profiled(rig: Rig) -> None:
    with pytest.raises(StatusError, match="the executor has ended"):
        rig.start(Process("lost", fails_at="start"))
    assert rig.ends == 1


def test_it_ends_by_itself_and_is_kept(rig: Rig) -> None:
    process = Process("a")
    profile = rig.start(process, most_s=0.01)
    assert rig.ended.wait(DEADLINE_S)
    profile.finish()
    assert process.calls.count("stop") == 1
    assert names(profile) == ["a.xplane.pb"]
    [note] = profile.notes
    assert "(--trace_s)" in note


def test_a_profile_that_is_dropped_ends_its_processes(rig: Rig) -> None:
    process = Process("a")
    rig.start(process).drop()
    assert process.calls[-1] == "drop"
    assert "stop" not in process.calls
    assert rig.ends == 1


def test_bytes_that_are_no_profile_are_left_out(rig: Rig) -> None:
    profile = rig.start(Process("a", raw=b"\xff"), Process("b"))
    profile.finish()
    assert names(profile) == ["b.xplane.pb"]
    assert "of a: its profile cannot be read" in profile.notes[0]


def test_memory_that_is_not_there(rig: Rig) -> None:
    with_room = rig.memory.charge(10_000 - len(RAW), "something else")
    profile = rig.start(Process("a"), Process("b"))
    profile.finish()
    assert len(names(profile)) == 1
    assert "(--host_memory_limit_bytes)" in profile.notes[0]
    del with_room
