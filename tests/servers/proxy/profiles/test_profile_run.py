"""A profile is bounded in time and bytes, and goes on without a process that is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import xplane_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.memory import HostMemory
from shared_pathways_service.servers.proxy.profiles.clocks import Offset, Sample
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.profile_run import Profile, Waits
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels, RecordedProcess
from tests.servers.proxy.conftest import wait_until


def raw(began_ns: int = 0) -> bytes:
    """Returns a profile with one event."""
    space = xplane_pb2.XSpace()
    space.planes.add(name="/host:CPU").lines.add(timestamp_ns=5).events.add(metadata_id=1)
    task = space.planes.add(name="Task Environment")
    task.stat_metadata[1].name = "profile_start_time"
    if began_ns:
        task.stats.add(metadata_id=1, uint64_value=began_ns)
    return space.SerializeToString()


RAW = raw()
USUAL = Waits()


class Process:
    """A process whose profile is `raw`, or that fails at a call."""

    def __init__(
        self,
        name: str,
        *,
        raw: bytes = RAW,
        fails_at: str = "",
        hangs_at: str = "",
        raises_at: str = "",
    ) -> None:
        self.name = name
        self.file = name
        self.devices: Sequence[Device] = ()
        self.samples: list[Sample] = []
        self.calls: list[str] = []
        self.most_bytes = 0
        self._raw = raw
        self._fails_at = fails_at
        self._hangs_at = hangs_at
        self._raises_at = raises_at
        self.stopping = threading.Event()

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
        if what == self._raises_at:
            raise MemoryError("no memory")
        if what == "stop":
            self.stopping.set()
        if what == self._hangs_at:
            return future
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

    def start(
        self, *processes: RecordedProcess, most_s: float = 600.0, waits: Waits = USUAL
    ) -> Profile:
        def end() -> None:
            self.ends += 1
            self.ended.set()

        profile = Profile(
            processes,
            most_s=most_s,
            most_bytes=1000,
            memory=self.memory,
            on_end=end,
            waits=waits,
        )
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
    return sorted(file.name for file in profile.files(0, Offset()))


def test_files_of_all_processes(rig: Rig) -> None:
    first, second = Process("a"), Process("b")
    profile = rig.start(first, second)
    assert "stop" not in first.calls
    assert rig.ends == 0
    profile.finish()
    profile.finish()
    assert rig.ends == 1
    assert first.calls == ["start", *["clock"] * 8, "stop"]
    assert rig.memory.held == 2 * len(RAW)
    assert names(profile) == ["a.xplane.pb", "b.xplane.pb"]
    assert profile.notes == []
    # What has been sent is kept no longer.
    assert rig.memory.held == 0
    # Each gets an equal part of the limit.
    assert (first.most_bytes, second.most_bytes) == (500, 500)


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
    with_room = rig.memory.charge(10_000 - len(RAW) - 10, "something else")
    profile = rig.start(Process("a"), Process("b"))
    profile.finish()
    assert names(profile) == []
    assert "(--host_memory_limit_bytes)" in profile.notes[0]
    del with_room


SHORT = Waits(start=Timeout(0.05), clocks=Timeout(0.05), collection=Timeout(0.05))


@pytest.mark.parametrize("when", ["start", "clock", "stop"])
def test_a_process_that_does_not_answer_is_left_out(rig: Rig, when: str) -> None:
    hung, other = Process("hung", hangs_at=when), Process("other")
    profile = rig.start(hung, other, waits=SHORT)
    profile.finish()
    assert names(profile) == ["other.xplane.pb"]
    assert profile.notes == ["the profile has no planes of hung: it did not answer in time"]
    assert hung.calls[-1] == "drop"


def test_clients_wait_for_longer_than_the_proxy_for_its_processes() -> None:
    answer_s = timeouts.PROFILE_REPLY.seconds
    clocks_s = timeouts.PROFILE_CLOCKS.seconds
    start_s = timeouts.PROFILE_START.seconds + clocks_s
    stop_s = timeouts.PROFILE_COLLECTION.seconds + clocks_s
    assert timeouts.PROFILE_STARTED.seconds >= start_s + answer_s
    assert timeouts.PROFILE_STOPPED.seconds >= stop_s + answer_s


def test_a_drop_does_not_wait_for_a_process_that_hangs(rig: Rig) -> None:
    hung = Process("hung", hangs_at="stop")
    profile = rig.start(hung)
    finishing = threading.Thread(target=profile.finish)
    finishing.start()
    assert hung.stopping.wait(DEADLINE_S)
    profile.drop()
    finishing.join(DEADLINE_S)
    assert not finishing.is_alive()
    assert hung.calls[-1] == "drop"
    assert rig.ends == 1


def test_a_failure_of_the_end_ends_it_all_the_same(rig: Rig) -> None:
    process = Process("a", raises_at="stop")
    profile = rig.start(process, most_s=0.01)
    assert rig.ended.wait(DEADLINE_S)
    profile.finish()
    assert names(profile) == []
    assert profile.notes[-1] == "its end failed: no memory"
    assert process.calls[-1] == "drop"


def test_what_is_not_fetched_is_forgotten(rig: Rig) -> None:
    profile = rig.start(Process("a"), waits=Waits(unfetched=Timeout(0.01)))
    profile.finish()
    wait_until(lambda: rig.memory.held == 0)
    with pytest.raises(StatusError, match=r"not fetched within 0\.01 s"):
        names(profile)


def test_times_are_relative_to_the_first_known_beginning(rig: Rig) -> None:
    profile = rig.start(
        Process("early", raw=raw(2_000)), Process("late", raw=raw(3_000)), Process("unknown")
    )
    profile.finish()
    begins = {
        file.name: xplane_pb2.XSpace.FromString(file.data).planes[0].lines[0].timestamp_ns
        for file in profile.files(0, Offset())
    }
    assert begins == {"early.xplane.pb": 5, "late.xplane.pb": 1_005, "unknown.xplane.pb": 5}


def test_an_empty_profile_is_left_out(rig: Rig) -> None:
    profile = rig.start(Process("a", raw=b""), Process("b"))
    profile.finish()
    assert names(profile) == ["b.xplane.pb"]
    assert profile.notes == ["the profile has no planes of a: its profile is empty"]
