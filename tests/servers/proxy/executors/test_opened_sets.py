"""When executors open clients, with executors that only record their commands."""

from __future__ import annotations

from concurrent import futures

import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors import opened_sets
from shared_pathways_service.servers.proxy.executors.opened_sets import OpenedSets


class Executor:
    """Answers commands, except those of the kinds that it is silent on or fails."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lost: StatusError | None = None
        self.silent = ""
        self.failing = ""
        self.commands: list[pb.ExecutorCommand] = []
        self.freed: list[tuple[str, int]] = []

    def ask(self, command: pb.ExecutorCommand) -> futures.Future[pb.ExecutorReport]:
        self.commands.append(command)
        future: futures.Future[pb.ExecutorReport] = futures.Future()
        kind = command.WhichOneof("command")
        if kind == self.failing:
            future.set_exception(StatusError(Code.INTERNAL, "it failed"))
        elif kind != self.silent:
            future.set_result(pb.ExecutorReport())
        return future

    def free(self, kind: str, number: int) -> None:
        self.freed.append((kind, number))

    @property
    def kinds(self) -> list[str | None]:
        return [command.WhichOneof("command") for command in self.commands]


class Service:
    """A coordination service."""

    def __init__(self) -> None:
        self.address = "10.0.0.1:99"
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Hosts:
    """Three slices of a device each; the first two have a host each, which the third shares."""

    def __init__(self) -> None:
        self.first, self.second = Executor("127.0.0.1:1"), Executor("127.0.0.1:2")
        self.link_of = {0: self.first, 1: self.second, 2: self.second}
        self.services: list[Service] = []
        self.sets = OpenedSets(7, self._serve)

    def number(self, *slices: int) -> int:
        return self.sets.number(slices, slices, self.link_of)

    def _serve(self, host: str, processes: int) -> Service:
        assert (host, processes) == ("127.0.0.1", 2)
        self.services.append(Service())
        return self.services[-1]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    monkeypatch.setattr(opened_sets, "_MOST_CLIENTS", 3)
    return Hosts()


LOST = StatusError(Code.DATA_LOSS, "the executor is gone")


def test_a_set_is_opened_once_all_its_hosts_have_met(hosts: Hosts) -> None:
    number = hosts.number(0, 1)
    assert hosts.number(0, 1) == number
    assert hosts.first.kinds == hosts.second.kinds == ["meet", "open"]
    opened = [executor.commands[-1].open for executor in (hosts.first, hosts.second)]
    assert [(list(o.own), o.node, o.nodes) for o in opened] == [([0], 0, 2), ([1], 1, 2)]
    assert {(o.coordinator, o.collective_timeout_s) for o in opened} == {("10.0.0.1:99", 7)}


def test_the_devices_of_each_host_are_numbered_one_after_the_other() -> None:
    hosts = Hosts()
    hosts.link_of = {0: hosts.first, 1: hosts.second, 2: hosts.first, 3: hosts.second}
    hosts.number(0, 1, 2, 3)
    opened = [executor.commands[-1].open for executor in (hosts.first, hosts.second)]
    assert [list(o.devices) for o in opened] == [[0, 2, 1, 3]] * 2
    assert [list(o.own) for o in opened] == [[0, 2], [1, 3]]


def test_each_use_of_an_opened_set_looks_up_each_device_once(hosts: Hosts) -> None:
    class Lookups(dict[int, Executor]):
        count = 0

        def __getitem__(self, device: int) -> Executor:
            self.count += 1
            return super().__getitem__(device)

    hosts.number(0, 1, 2)
    hosts.link_of = lookups = Lookups(hosts.link_of)
    hosts.number(0, 1, 2)
    assert lookups.count == 3


def test_a_set_of_one_host_needs_no_service(hosts: Hosts) -> None:
    hosts.number(1, 2)
    assert hosts.second.kinds == ["open"]
    assert not hosts.second.commands[0].open.coordinator
    assert not hosts.services


def test_a_set_of_a_lost_host_is_refused_before_the_others_wait_for_it(hosts: Hosts) -> None:
    hosts.second.lost = LOST
    for _ in range(2):
        with pytest.raises(StatusError, match="the executor is gone") as raised:
            hosts.number(0, 1)
        assert raised.value.code is Code.DATA_LOSS
    assert not hosts.first.commands
    assert not hosts.services


@pytest.mark.parametrize(("what", "code"), [("silent", 4), ("failing", 13)])
def test_no_host_opens_a_set_if_one_cannot(hosts: Hosts, what: str, code: int) -> None:
    setattr(hosts.second, what, "meet")
    with pytest.raises(StatusError) as raised:
        hosts.number(0, 1)
    assert raised.value.code == code
    assert hosts.first.kinds == ["meet"]
    assert not hosts.services
    setattr(hosts.second, what, "")
    hosts.number(0, 1)
    assert hosts.first.kinds == ["meet", "meet", "open"]


def test_a_set_that_could_not_be_opened_is_not_tried_again(hosts: Hosts) -> None:
    hosts.second.failing = "open"
    for _ in range(2):
        with pytest.raises(StatusError, match="it failed"):
            hosts.number(0, 1)
    assert hosts.first.kinds == ["meet", "open"]
    # The other host may still be in it: the service stays until both have ended.
    hosts.number(0)
    assert not hosts.services[0].is_closed
    hosts.first.lost = hosts.second.lost = LOST
    with pytest.raises(StatusError, match="the executor is gone"):
        hosts.number(1)
    hosts.link_of[2] = Executor("127.0.0.1:3")
    hosts.number(2)
    assert hosts.services[0].is_closed


def test_after_a_failed_program_a_set_gets_another_client(hosts: Hosts) -> None:
    first, of_one = hosts.number(0, 1), hosts.number(0)
    hosts.sets.drop_broken(first)
    second = hosts.number(0, 1)
    assert second != first
    # A report of another host, which comes late.
    hosts.sets.drop_broken(first)
    assert hosts.number(0, 1) == second
    assert hosts.number(0) == of_one


def test_the_number_of_clients_is_limited_and_unused_ones_of_one_host_are_freed(
    hosts: Hosts,
) -> None:
    class User:
        pass

    user = User()
    unused = hosts.number(1, 2)
    for slices in ((1,), (2,)):
        hosts.sets.use(slices, user)
        hosts.number(*slices)
    hosts.number(0, 1)
    assert hosts.second.freed == [("clients", unused)]
    with pytest.raises(StatusError, match=r"executor at 127.0.0.1:2 has 3 clients") as raised:
        hosts.number(0, 2)
    assert raised.value.code is Code.RESOURCE_EXHAUSTED
    assert len(hosts.services) == 1
    del user
    hosts.number(0, 2)


def test_an_executor_in_the_place_of_another_one_opens_clients_of_its_own(hosts: Hosts) -> None:
    both, of_one = hosts.number(0, 1), hosts.number(0)
    hosts.second.lost = LOST
    third = hosts.link_of[1] = Executor("127.0.0.1:3")
    again = hosts.number(0, 1)
    assert again != both
    assert third.kinds == ["meet", "open"]
    assert hosts.number(0, 1) == again
    assert hosts.number(0) == of_one
    assert hosts.second.kinds == ["meet", "open"]


def test_a_failed_set_is_tried_again_once_an_executor_is_replaced(hosts: Hosts) -> None:
    hosts.second.failing = "open"
    with pytest.raises(StatusError, match="it failed"):
        hosts.number(0, 1)
    hosts.link_of[1] = Executor("127.0.0.1:3")
    assert hosts.number(0, 1)


def test_the_service_of_a_set_ends_with_the_last_of_its_hosts(hosts: Hosts) -> None:
    hosts.number(0, 1)
    (service,) = hosts.services
    hosts.first.lost = LOST
    hosts.sets.close_services()
    assert not service.is_closed
    hosts.second.lost = LOST
    hosts.sets.close_services()
    assert service.is_closed


def test_hosts_that_did_not_all_meet_keep_nothing_of_the_set(hosts: Hosts) -> None:
    hosts.second.silent = "meet"
    with pytest.raises(StatusError):
        hosts.number(0, 1)
    assert hosts.first.freed == hosts.second.freed == [("clients", hosts.first.commands[0].client)]
