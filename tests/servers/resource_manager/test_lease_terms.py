"""No two heads may decide at the same time, whatever the delays of their requests are."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared_pathways_service.servers.resource_manager.lease.lease_terms import LeaseTerms, Timing

TIMING = Timing.of(15)


@dataclasses.dataclass
class Server:
    """The API server's Lease: a write needs the version that was read."""

    lease: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"metadata": {"resourceVersion": "1"}, "spec": {}}
    )

    def replace(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        version = self.lease["metadata"]["resourceVersion"]
        if wanted["metadata"]["resourceVersion"] != version:
            return None
        self.lease = {**wanted, "metadata": {"resourceVersion": str(int(version) + 1)}}
        return self.lease


@dataclasses.dataclass
class Head:
    """A head whose clock began at another time than those of others."""

    terms: LeaseTerms
    offset: float
    asked_at: float = 0.0
    wanted: dict[str, Any] | None = None

    def ask(self, server: Server, now: float) -> None:
        """Reads the Lease, and decides on the write that `write` delivers later."""
        clock = now + self.offset
        if self.terms.may_take(server.lease, clock):
            self.asked_at, self.wanted = clock, self.terms.taken(server.lease, f"t{now}")

    def write(self, server: Server) -> None:
        if self.wanted is not None and server.replace(self.wanted) is not None:
            self.terms.renewed(self.asked_at)
        self.wanted = None

    def decides(self, now: float) -> bool:
        return self.terms.is_held(now + self.offset)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(("ask", "write", "none")), st.floats(0.0, 12.0)
        ),
        max_size=60,
    )
)
def test_one_head_decides_at_a_time(steps: list[tuple[int, str, float]]) -> None:
    server, now = Server(), 1000.0
    offsets = {"a": 0.0, "b": -900.0, "c": 5e5}
    heads = [Head(LeaseTerms(name, TIMING), offset) for name, offset in offsets.items()]
    for number, action, pause in steps:
        if action == "ask":
            heads[number].ask(server, now)
        elif action == "write":
            heads[number].write(server)
        assert sum(head.decides(now) for head in heads) <= 1
        now += pause


def test_a_released_lease_is_taken_at_once_and_an_abandoned_one_after_its_duration() -> None:
    server = Server()
    old, new = (Head(LeaseTerms(name, TIMING), 0.0) for name in ("old", "new"))
    old.ask(server, 100.0)
    old.write(server)
    assert old.decides(109.9)
    assert not old.decides(110.1)
    assert not new.terms.may_take(server.lease, 100.0)
    assert not new.terms.may_take(server.lease, 115.0)
    # A renewal that this head has seen counts from when it saw it.
    old.ask(server, 108.0)
    old.write(server)
    assert not new.terms.may_take(server.lease, 116.0)
    assert not new.terms.may_take(server.lease, 131.0)
    assert new.terms.may_take(server.lease, 131.1)
    server.replace(old.terms.released(server.lease))
    new.ask(server, 132.0)
    new.write(server)
    assert new.decides(132.0)
    assert server.lease["spec"]["leaseTransitions"] == 2
    # Its own it may renew at any time, and others' writes are not overwritten.
    old.ask(server, 133.0)
    assert old.wanted is None
