"""Late requests: strangers' are given up, and those that the tenant's sessions may have are not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S
from harness.proxy.raw import single
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.session.buffers import count_files
from shared_pathways_service.servers.proxy.transport.late_requests import LateRequests
from shared_pathways_service.testing.attacks.peer import DATA, ENDED, Peer
from tests.servers.proxy.conftest import MakeClient, MakeProxy

FOUR = np.arange(4, dtype=np.float32)
LOOKUP = f"/{ifrt.SERVICE}/HostBufferLookup"
VERSION = f"/{ifrt.SERVICE}/GetVersion"
#: Seconds that no test lasts.
LONG = 1000.0


class Late(contextlib.ExitStack):
    """Requests that never come, by number, and those that were given up, with the reason."""

    def __init__(self, watch: LateRequests) -> None:
        super().__init__()
        self.watch = watch
        self.callback(watch.close)
        self.told: list[int] = []
        self.reasons: list[str] = []
        self._count = 0

    def come(self, count: int = 1) -> None:
        for _ in range(count):
            self.enter_context(self.watch.awaited(self._note(self._count)))
            self._count += 1

    def _note(self, number: int) -> Callable[[str], None]:
        def note(reason: str) -> None:
            self.told.append(number)
            self.reasons.append(reason)

        return note


def test_as_many_more_may_be_late_as_sessions_may_have() -> None:
    with Late(LateRequests(LONG, expected=lambda: 3, most=2)) as late:
        late.come(7)
        wait_until("the second report", lambda: late.told == [0, 1])
        late.come()
        wait_until("the third report", lambda: late.told == [0, 1, 2])
        assert "5 newer ones have not arrived" in late.reasons[0]


def test_the_last_that_sessions_may_have_are_not_given_up_for_their_time() -> None:
    with Late(LateRequests(0.05, expected=lambda: 1)) as late:
        late.come(2)
        wait_until("the first report", lambda: late.told == [0])
        late.come()
        wait_until("the second report", lambda: late.told == [0, 1])
        assert "took more than 0.05 s" in late.reasons[0]


def test_they_are_where_calls_wait_and_none_gets_through() -> None:
    asked: list[int] = []
    waiting = 0

    def expected() -> int:
        asked.append(len(asked))
        return 10

    with Late(LateRequests(0.05, expected=expected, waiting=lambda: waiting)) as late:
        late.come()
        # It asks when the time is over, and in every round from then on.
        wait_until("more questions", lambda: len(asked) > 3)
        assert late.told == []
        waiting = 1
        wait_until("the first report", lambda: late.told == [0])


def test_a_call_that_its_client_ends_before_its_request_came_is_no_progress() -> None:
    with Late(LateRequests(0.05, expected=lambda: 10, waiting=lambda: 1)) as late:
        late.come()

        def is_given_up() -> bool:
            with late.watch.awaited(lambda _reason: None):
                return late.told == [0]

        wait_until("the end of a late request", is_given_up)


def test_fewer_are_spared_than_a_pool_has_threads_while_calls_wait() -> None:
    waiting = 0
    asked: list[int] = []

    def expected() -> int:
        # Another one gets through in each round.
        with watch.awaited(lambda _reason: None) as awaited:
            awaited.has_arrived = True
        return 100

    def count_waiting() -> int:
        asked.append(len(asked))
        return waiting

    watch = LateRequests(0.05, expected=expected, waiting=count_waiting, threads=32)
    with Late(watch) as late:
        late.come(32)
        wait_until("more questions", lambda: len(asked) > 5)
        assert late.told == []
        waiting = 1
        wait_until("two reports", lambda: len(late.told) >= 2)
        asked.clear()
        wait_until("more questions", lambda: len(asked) > 5)
        assert late.told == [0, 1]


@pytest.mark.parametrize("transport", ["core", "public"])
def test_a_stranger_does_not_shut_a_tenant_out_while_it_downloads(
    make_proxy: MakeProxy, connect: MakeClient, transport: str
) -> None:
    proxy = make_proxy(transport=transport, limits=Limits(request_timeout_s=0.5))
    client = connect(proxy.address)
    array = client.put(FOUR, single(0))
    fetches = [client.begin_fetch(array) for _ in range(100)]
    for pending, _ in fetches:
        pending.result()
    first, last = fetches[0][1], fetches[-1][1]
    delete = proxy_pb2.GrpcHostBufferDeleteRequest(session_id=client.session_id, handle=last)
    with futures.ThreadPoolExecutor(1) as pool, Peer(proxy.address) as stranger:
        stranger.greet()
        for _ in range(70):
            stranger.open(VERSION)

        def others_wait() -> bool:
            # (The oldest may be given up before the first look.)
            if not proxy.transport._plain.waiting:
                stranger.open(VERSION)
            return proxy.transport._plain.waiting > 0

        wait_until("waiting requests", others_wait)
        deleted = pool.submit(client.unary, "HostBufferDelete", delete)
        deadline = time.monotonic() + DEADLINE_S / 2
        while not deleted.done() and time.monotonic() < deadline:
            assert client.lookup(first) == FOUR.tobytes()
        assert deleted.done()
        deleted.result()


@pytest.mark.parametrize("transport", ["core", "public"])
def test_a_starved_clients_lookups_are_waited_for_amid_a_strangers(
    make_proxy: MakeProxy, connect: MakeClient, transport: str
) -> None:
    proxy = make_proxy(transport=transport)
    client = connect(proxy.address)
    array = client.put(FOUR, single(0))
    with Peer(proxy.address) as stranger, Peer(proxy.address) as starved:
        stranger.greet()
        starved.greet()
        for _ in range(13):
            stranger.open(LOOKUP)
        # Eight may stay where no session has a buffer.
        assert stranger.wait(ENDED, times=5, timeout_s=DEADLINE_S)
        fetches = [client.begin_fetch(array) for _ in range(30)]
        for pending, _ in fetches:
            pending.result()
        assert proxy.service.count_buffers() == 30
        streams = [starved.open(LOOKUP) for _ in fetches]
        # The starved client's are all there now, and late, when more of the stranger's must go.
        for _ in range(3):
            starved.open(LOOKUP)
        assert stranger.wait(ENDED, times=8, timeout_s=DEADLINE_S)
        starved.read()
        assert starved.seen[ENDED] == 0
        for stream, (_, buffer) in zip(streams, fetches, strict=True):
            request = proxy_pb2.GrpcHostBufferLookupRequest(
                session_id=client.session_id, handle=buffer
            )
            starved.finish(stream, request.SerializeToString())
        assert starved.wait(ENDED, times=30, timeout_s=DEADLINE_S)
        assert starved.seen[DATA] == 30


def test_requests_are_looked_after_although_a_look_failed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    failures = iter(range(3))

    def expected() -> int:
        if next(failures, None) is not None:
            raise FileNotFoundError("the directory is gone")
        return 0

    with Late(LateRequests(0.05, expected=expected)) as late:
        late.come()
        wait_until("the first report", lambda: late.told == [0])
    said = capfd.readouterr().err
    assert said.count("for late requests: FileNotFoundError: the directory is gone") == 1


def test_a_directory_that_cannot_be_read_has_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lt_1").touch()
    scan = os.scandir

    def scan_what_is_removed(path: Path) -> Any:
        # As between Path.glob's look at the directory and its reading.
        (tmp_path / "lt_1").unlink()
        tmp_path.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_what_is_removed)
    assert count_files(tmp_path) == 0
    (a_file := tmp_path.parent / "file").touch()
    monkeypatch.undo()
    assert count_files(a_file) == 0


def test_files_that_a_client_has_left_count_too(tmp_path: Path) -> None:
    for name in ("lt_1", "lt_2", "another"):
        (tmp_path / name).touch()
    assert count_files(tmp_path) == 2
    assert count_files(tmp_path / "none") == 0
