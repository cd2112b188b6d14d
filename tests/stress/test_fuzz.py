"""The short form of `stress.fuzz`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S
from harness.proxy.programs import ENDLESS
from harness.proxy.raw import RawClient, single
from shared_pathways_service.protocol import ifrt
from stress.fuzz.campaign import Campaign, started_proxy
from stress.fuzz.conversation import FuzzError
from stress.fuzz.observer import DEBUGGERS
from stress.fuzz.rounds import ROUNDS, run_sequence
from stress.fuzz.witness import Witness, check_nothing_left


@pytest.mark.heavy
@pytest.mark.race
def test_random_requests_and_bytes_do_no_harm() -> None:
    campaign = Campaign(seed=20, tell=print)
    campaign.run(15.0)
    assert set(campaign.done) == set(ROUNDS)
    assert campaign.checked > 0


def test_the_fuzzer_detects_leftovers() -> None:
    with started_proxy() as (_, target), contextlib.closing(Witness(target.address)) as witness:
        wait_until("a first result", lambda: witness.checked > 0)
        witness.pause()
        check_nothing_left(target.address, DEADLINE_S)
        with RawClient(target.address) as other:
            with pytest.raises(FuzzError, match="'open_sessions': 2"):
                check_nothing_left(target.address, 0)
            other.put(np.ones(4), single(0))
            other.store(7, bytes(100))
            with pytest.raises(FuzzError, match=r"'open_handles': 5.*'host_buffers': 1,"):
                check_nothing_left(target.address, 0)
        check_nothing_left(target.address, DEADLINE_S)


def test_the_threads_of_a_silent_proxy_are_reported() -> None:
    with started_proxy() as (_, target), RawClient(target.address) as client:
        program = client.compile(ENDLESS, [0])
        client.execute(program, [client.put(np.ones(4), single(0))])
        observer = dataclasses.replace(target.observer, devices=(7,), debuggers={})
        silent = dataclasses.replace(target, observer=observer, deadline_s=10.0)
        with pytest.raises(FuzzError, match="no answer to check_value_ready within 10 s"):
            run_sequence(silent, [("run", 0, 1, []), ("ready", 0, 0, [1])], ifrt.PROTOCOL_MAX)
    (look,) = observer.looks
    # The program stands still that the other one, which does not end, holds up; nothing else does.
    assert look["answers"].keys() == {"counters"} | {
        f"{what} on device 7" for what in ("session", "compile", "run")
    }
    assert all(told.startswith("after ") for told in look["answers"].values()), look["answers"]
    assert any("proxy/execution/executor.py" in line for line in look["python"])
    assert any(thread["cpu_s_between"] > 0 for thread in look["threads"].values())
    assert json.dumps(look)


def test_a_stopped_proxy_is_reported_as_stopped() -> None:
    debuggers = {name: DEBUGGERS[name] for name in ["py-spy --nonblocking"]}
    with started_proxy() as (process, target):
        observer = dataclasses.replace(target.observer, patience_s=1.0, debuggers=debuggers)
        silent = dataclasses.replace(target, observer=observer, deadline_s=1.0)
        process.signal(signal.SIGSTOP)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                run_sequence(silent, [("assignment", 1, 1, [])], ifrt.PROTOCOL_MAX)
    assert len(observer.looks) == 2  # of one proxy that is enough
    for look in observer.looks:
        assert look["answers"].keys() == {
            "counters", "session on device 0", "session on device 7",
        }  # fmt: skip
        assert all(told.startswith("not in ") for told in look["answers"].values())
        assert look["python"] == ["none in 1 s"]
        assert {thread["state"] for thread in look["threads"].values()} == {"T"}
        # (Where debuggers are not allowed to look, it says so.)
        assert look["py-spy --nonblocking"]
