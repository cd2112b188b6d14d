"""Restarts of the resource manager while executors serve or end: each holder is notified again.

The state machine's world judges after each event; these are sequences that it finds only rarely.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scheduling.machines import begun
from tests.scheduling.test_properties import ResourceManagerMachine
from tests.scheduling.world import LARGE, SMALL, Worker, World

#: The manager dies before each instruction of an event, and after the last of up to eleven.
_INSTRUCTIONS = range(12)


def _busy() -> ResourceManagerMachine:
    """Two holders of a small slice, one of a large one with two hosts; all executors serve."""
    machine = begun(executors=True)
    machine.all_workers_are_back()
    for kind in (SMALL, SMALL, LARGE):
        machine.ask((kind,))
    machine.executors_serve()
    _check_notified(machine.world, 3)
    return machine


def _check_notified(world: World, holders: int) -> None:
    """Each proxy has a slice, and was notified of the executors of this placement."""
    assert len(world.proxies) == holders
    for proxy in world.proxies.values():
        assert proxy.connected
        assert len(proxy.view) == 1
        assert proxy.executors == {index: held[1] for index, held in proxy.view.items()}


def _proxies_first(machine: ResourceManagerMachine) -> None:
    machine.all_proxies_are_back()
    machine.all_workers_are_back()


def _workers_first(machine: ResourceManagerMachine) -> None:
    machine.all_workers_are_back()
    machine.all_proxies_are_back()


_ORDERS = pytest.mark.parametrize("all_are_back", [_proxies_first, _workers_first])


@_ORDERS
def test_holders_are_notified_again_after_a_restart(
    all_are_back: Callable[[ResourceManagerMachine], None],
) -> None:
    machine = _busy()
    machine.manager_restarts(lose_disk=False, all_return=False)
    all_are_back(machine)
    _check_notified(machine.world, 3)
    machine.teardown()


def test_the_second_holder_is_notified_after_the_manager_died_at_the_report_of_the_first() -> None:
    machine = begun(executors=True)
    machine.tenant_asks_and_waits(small=1, elastic=0, priority=0)
    machine.all_workers_are_back()
    machine.tenant_asks_and_waits(small=1, elastic=0, priority=0)
    machine.executors_serve()
    machine.manager_will_die_within_an_event(instructions=0)
    machine.executors_serve()
    _proxies_first(machine)
    _check_notified(machine.world, 2)
    machine.teardown()


def test_a_start_that_was_reported_only_during_a_recovery_is_recorded_after_the_next() -> None:
    machine = begun(executors=True)
    machine.all_workers_are_back()
    machine.ask((SMALL,))
    machine.manager_restarts(lose_disk=False, all_return=False)
    machine.all_workers_are_back()
    machine.executors_serve()  # while the manager recovers: it records no start yet
    machine.manager_restarts(lose_disk=False, all_return=False)
    _proxies_first(machine)
    _check_notified(machine.world, 1)
    assert len(machine.world.books.started) == 1
    machine.teardown()


@_ORDERS
def test_a_holder_whose_executor_ended_before_the_workers_were_back_gets_another_placement(
    all_are_back: Callable[[ResourceManagerMachine], None],
) -> None:
    machine = _busy()
    machine.manager_restarts(lose_disk=False, all_return=False)
    worker = machine.hosting[-1]
    lost = worker.executor
    _last_executor_ends(machine)
    all_are_back(machine)
    held = {held[1] for proxy in machine.connected for held in proxy.view.values()}
    assert lost not in held
    assert len(held) == 3
    machine.executors_serve()
    _check_notified(machine.world, 3)
    machine.teardown()


def test_a_repeated_report_of_an_executors_end_does_not_end_the_next_placement() -> None:
    machine = _busy()
    # The disk has the next placement, on the same slice; its worker was not assigned it.
    machine.manager_will_die_within_an_event(instructions=1)
    _first_executor_ends(machine)
    ended = machine.world.workers["tpuv6e-0/0"].executor
    name = machine.world.placings[ended].tenant
    held = dict(machine.world.grants[name].placements)
    assert held[0][0] == "tpuv6e-0"
    assert held[0][1] > ended
    _workers_first(machine)
    assert machine.world.proxies[name].view == held
    machine.executors_serve()
    _check_notified(machine.world, 3)
    machine.teardown()


def test_an_executor_that_ends_once_its_proxy_gave_it_up_ends_no_placement() -> None:
    machine = begun(executors=True)
    machine.all_workers_are_back()
    proxy = machine.ask((SMALL,))
    _proxy_cannot_reach_its_executor(machine)
    _proxy_cannot_reach_its_executor(machine)  # the second report waits
    ((_, waits),) = proxy.view.values()
    (worker,) = machine.hosting
    assert worker.executor == waits
    _end_executor(machine, worker)
    assert worker.reported
    assert waits in {held[1] for held in proxy.view.values()}
    machine.time_passes(seconds=1.0)
    machine.executors_serve()
    assert waits not in {held[1] for held in proxy.view.values()}
    _check_notified(machine.world, 1)
    machine.teardown()


def test_a_proxy_that_claims_a_released_placement_gets_another_one() -> None:
    machine = begun(executors=True)
    machine.all_workers_are_back()
    proxy = machine.ask((SMALL,))
    ((_, released),) = proxy.view.values()
    machine.executors_serve()
    machine.world.cut_proxy(proxy)
    machine.world.release(proxy)
    machine.manager_restarts(lose_disk=True, all_return=True)  # it does not know of the release
    machine.time_passes(seconds=35.0)
    ((_, held),) = proxy.view.values()
    assert held > released
    machine.executors_serve()
    _check_notified(machine.world, 1)
    machine.teardown()


def _first_executor_ends(machine: ResourceManagerMachine) -> None:
    _end_executor(machine, machine.hosting[0])


def _last_executor_ends(machine: ResourceManagerMachine) -> None:
    # Its worker is the last to come back, so it reports after the recovery.
    _end_executor(machine, machine.hosting[-1])


def _end_executor(machine: ResourceManagerMachine, worker: Worker) -> None:
    machine.world.executors.fail(worker)
    machine.world.report_executor(worker)


def _proxy_cannot_reach_its_executor(machine: ResourceManagerMachine) -> None:
    proxy = machine.connected[0]
    ((index, (_, generation)),) = proxy.view.items()
    proxy.given_up[index] = generation
    machine.world.do(machine.world.executors.unreachable(proxy, index, generation))


def _worker_is_replaced(machine: ResourceManagerMachine) -> None:
    machine.trouble(machine.held[0], "replace")


def _worker_dies(machine: ResourceManagerMachine) -> None:
    machine.trouble(machine.held[0], "die")


def _proxy_is_cut_off(machine: ResourceManagerMachine) -> None:
    machine.world.cut_proxy(machine.connected[0])


def _proxy_speaks_again(machine: ResourceManagerMachine) -> None:
    proxy = machine.connected[0]
    machine.world.ask(proxy, proxy.view)


def _time_passes(machine: ResourceManagerMachine) -> None:
    machine.time_passes(seconds=0.5)


@_ORDERS
@pytest.mark.parametrize(
    "event",
    [
        ResourceManagerMachine.executors_serve,
        _first_executor_ends,
        _last_executor_ends,
        _proxy_cannot_reach_its_executor,
        _worker_is_replaced,
        _worker_dies,
        _proxy_is_cut_off,
        _proxy_speaks_again,
        _time_passes,
    ],
)
def test_holders_are_notified_after_the_manager_died_within_an_event(
    event: Callable[[ResourceManagerMachine], None],
    all_are_back: Callable[[ResourceManagerMachine], None],
) -> None:
    for instructions in _INSTRUCTIONS:
        machine = _busy()
        machine.manager_will_die_within_an_event(instructions=instructions)
        event(machine)
        assert machine.world.crash_after is None, "the manager has not died"
        all_are_back(machine)
        machine.executors_serve()  # those of placements that are new
        _check_notified(machine.world, 3)


@_ORDERS
def test_holders_are_notified_after_the_manager_died_during_its_recovery(
    all_are_back: Callable[[ResourceManagerMachine], None],
) -> None:
    for instructions in _INSTRUCTIONS:
        machine = _busy()
        machine.manager_restarts(lose_disk=False, all_return=False)
        machine.manager_will_die_within_an_event(instructions=instructions)
        all_are_back(machine)
        all_are_back(machine)
        _check_notified(machine.world, 3)
