"""Executors on the hosts of the simulated world: each runs what its worker was assigned last."""

from __future__ import annotations

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.holdings import StatusReport
from tests.scheduling.world.facts import Facts
from tests.scheduling.world.parties import Proxy, Worker

#: The most seconds for which a report of a proxy waits.
_LONGEST_S = 64.0


class Executors:
    """Carries out assignments, and judges what workers run and what proxies were told of it."""

    def __init__(self, world: Facts) -> None:
        self._world = world
        self._over: set[int] = set()  # generations of which an executor has ended

    def end(self, worker: Worker) -> None:
        """Ends a worker's executor, as it is assigned another one or dies itself."""
        if worker.executor:
            self._over.add(worker.executor)
            worker.over.add(worker.executor)
        worker.executor, worker.serves, worker.ended, worker.reported = 0, False, False, False

    def fail(self, worker: Worker) -> None:
        """Lets a worker's executor end by itself."""
        self._over.add(worker.executor)
        worker.serves, worker.ended, worker.reported = False, True, False

    @staticmethod
    def report_of(worker: Worker) -> m.ExecutorServing | m.ExecutorEnded | None:
        """Returns what a worker reports of its executor; None: it has nothing to report."""
        who = worker.slice_id, worker.host, worker.incarnation
        if worker.ended:
            return m.ExecutorEnded(
                slice_id=who[0],
                host_index=who[1],
                incarnation=who[2],
                generation=worker.executor,
                reason="killed",
            )
        if not worker.serves:
            return None
        return m.ExecutorServing(
            slice_id=who[0], host_index=who[1], incarnation=who[2], generation=worker.executor
        )

    def unreachable(self, proxy: Proxy, index: int, generation: int) -> m.PlacementUnreachable:
        """Returns a proxy's report of a placement, which it has given up or is another one."""
        if proxy.given_up.get(index) == generation:
            self._world.given_up.add(generation)
            self._world.reported_at.setdefault(generation, self._world.now)
        return m.PlacementUnreachable(
            tenant=proxy.name,
            incarnation=proxy.incarnation,
            virtual_index=index,
            generation=generation,
            host_index=None,
            reason="no answer",
        )

    def hear(self, one: m.AssignWorker | m.NotifyExecutors) -> None:
        if isinstance(one, m.AssignWorker):
            self._assign(one)
        else:
            self._notify(one)

    def _assign(self, one: m.AssignWorker) -> None:
        world = self._world
        worker = world.workers[f"{one.slice_id}/{one.host_index}"]
        assert worker.connected
        assert worker.incarnation == one.incarnation
        assert world.core.status(world.now).state == "serving", "assigned while recovering"
        if one.generation:
            held = world.grants[one.tenant].placements.values()
            assert (one.slice_id, one.generation) in held, "assigned before it was on the disk"
        if worker.executor != one.generation:
            self.end(worker)
            worker.executor = one.generation
            worker.ended = one.generation in worker.over  # a placement has one executor per host

    def _notify(self, one: m.NotifyExecutors) -> None:
        proxy = self._world.proxies[one.tenant]
        assert proxy.connected
        assert proxy.view.get(one.virtual_index) == (one.slice_id, one.generation)
        assert all(self._serves(worker, one.generation) for worker in self._hosts(one.slice_id))
        proxy.executors[one.virtual_index] = one.generation

    def judge(self, after: StatusReport) -> None:
        """Each host runs what its slice's holder needs; holders know it, and lost none of it."""
        world = self._world
        if after.state != "serving" or not world.config.executors:
            return
        unreported = {
            worker.executor
            for worker in world.workers.values()
            if worker.ended and not worker.reported
        }
        for one in after.slices:
            wanted = one.generation if one.tenant else 0
            for seated in one.workers:
                worker = world.workers[f"{one.id}/{seated.host_index}"]
                if worker.connected and worker.incarnation == seated.incarnation:
                    assert worker.executor == wanted, f"{one.id} runs {worker.executor}"
            if wanted not in unreported | world.reported_at.keys():
                assert wanted not in self._over, f"{one.id} is held, an executor of it has ended"
            hosts = self._hosts(one.id)
            serve = all(self._serves(host, wanted) and host.reported for host in hosts)
            # (With the disk, the records of earlier starts were lost.)
            is_recorded = not wanted or wanted in world.books.started or world.disk_lost_at >= 0
            assert is_recorded or not serve, f"the start of {wanted} is not recorded"
            reported_at = world.reported_at.get(wanted, world.now)
            assert world.now - reported_at <= _LONGEST_S, f"{one.id} is held, and given up"
        for proxy in world.proxies.values():
            for index, (slice_id, generation) in proxy.view.items() if proxy.connected else ():
                hosts = self._hosts(slice_id)
                if all(self._serves(one, generation) and one.reported for one in hosts):
                    assert proxy.executors.get(index) == generation, f"{proxy.name} was not told"

    def _hosts(self, slice_id: str) -> list[Worker]:
        return [one for one in self._world.workers.values() if one.slice_id == slice_id]

    @staticmethod
    def _serves(worker: Worker, generation: int) -> bool:
        return worker.connected and worker.serves and worker.executor == generation
