"""The rules of the simulated world about workers, and executors on their hosts."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.scheduling.world import Proxy, Worker, World


class WorkerMachine(RuleBasedStateMachine):
    world: World

    @property
    def alive(self) -> list[Proxy]:
        return [proxy for proxy in self.world.proxies.values() if proxy.refused is None]

    @property
    def connected(self) -> list[Proxy]:
        return [proxy for proxy in self.alive if proxy.connected]

    @property
    def held(self) -> list[str]:
        """Workers of slices that somebody holds."""
        slices = {slice_id for proxy in self.alive for slice_id, _ in proxy.view.values()}
        return sorted(k for k, worker in self.world.workers.items() if worker.slice_id in slices)

    @property
    def away(self) -> list[Proxy]:
        return [proxy for proxy in self.alive if not proxy.connected]

    # ---- workers

    @rule(data=st.data(), what=st.sampled_from(["die", "cut", "replace", "stop"]))
    def worker_has_trouble(self, data: st.DataObject, what: str) -> None:
        self.trouble(data.draw(st.sampled_from(sorted(self.world.workers))), what)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), what=st.sampled_from(["die", "cut", "replace", "stop"]))
    def worker_of_a_held_slice_has_trouble(self, data: st.DataObject, what: str) -> None:
        self.trouble(data.draw(st.sampled_from(self.held)), what)

    def trouble(self, key: str, what: str) -> None:
        worker = self.world.workers[key]
        if what == "stop":
            worker.stopped = not worker.stopped
        elif what == "replace" or not worker.running:
            self.world.start_worker(key)
        elif what == "die" or worker.connected:
            self.world.disconnect_worker(key, dies=what == "die")
        else:
            self.world.connect_worker(key)

    @rule()
    def all_workers_are_back(self) -> None:
        for key, worker in self.world.workers.items():
            if not worker.running:
                self.world.start_worker(key)
            elif not worker.connected:
                self.world.connect_worker(key)

    @property
    def hosting(self) -> list[Worker]:
        """Workers whose executor runs."""
        known = self.world.workers.values()
        return [one for one in known if one.running and one.executor and not one.ended]

    @precondition(lambda self: self.hosting)
    @rule()
    def executors_serve(self) -> None:
        for worker in self.hosting:
            worker.serves = True
            self.world.report_executor(worker)

    @precondition(lambda self: self.hosting)
    @rule(data=st.data(), serves=st.booleans())
    def executor_serves_or_ends(self, data: st.DataObject, serves: bool) -> None:
        worker = data.draw(st.sampled_from(self.hosting))
        worker.serves = serves
        if not serves:
            self.world.executors.fail(worker)
        self.world.report_executor(worker)

    @property
    def computing(self) -> list[Proxy]:
        """Proxies that compute on executors."""
        if not self.world.config.executors:
            return []
        return [proxy for proxy in self.connected if proxy.view]

    @precondition(lambda self: self.computing)
    @rule(data=st.data(), is_older=st.booleans())
    def proxy_cannot_reach_an_executor(self, data: st.DataObject, is_older: bool) -> None:
        proxy = data.draw(st.sampled_from(self.computing))
        index = data.draw(st.sampled_from(sorted(proxy.view)))
        generation = proxy.view[index][1] - is_older
        if not is_older:
            proxy.given_up[index] = generation
        self.world.do(self.world.executors.unreachable(proxy, index, generation))
