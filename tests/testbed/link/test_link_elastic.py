"""Elastic training waits for a lost link, and does not go on with a new proxy."""

from __future__ import annotations

import time

import pytest

from harness.programs import program
from harness.testbed.clients import PRELUDE, nothing_left, tenant
from harness.testbed.ways import open_way
from shared_pathways_service.testing.testbed import DeployedService

pytestmark = pytest.mark.race

AWAY_S = 10.0

TRAINING = """
import queue
wanted = queue.SimpleQueue()
def read():
    for line in sys.stdin:
        wanted.put(line.strip())
threading.Thread(target=read, daemon=True).start()

begun, reconnected, told = [], [], []
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax, numpy as np
    from harness.elastic.example_training import dataset, initial_state, options, train_step
    from shared_pathways_service import elastic

    again = elastic.reconnect_with(connection)
    def reconnect():
        reconnected.append(connection.proxy_job_name)
        return again()

    def train(attempt):
        begun.append(attempt.progress.step)
        state = attempt.restore(initial_state)
        for batch in attempt.batches(dataset()):
            given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
            state, loss = train_step(state, given)
            attempt.step_done(state, loss)
            if not wanted.empty():
                if (word := wanted.get()) == "stop":
                    break
                say(word, step=attempt.progress.step)
        return state

    chosen = options(snapshot_period=2, poll_interval=0.2, elastic_timeout_seconds=150.0)
    with elastic.Manager(connection.devices, options=chosen, reconnect=reconnect, console=False,
                         on_event=lambda event: told.append(event.kind)) as manager:
        say("training")
        state = manager.run(train)
    say("trained", count=int(state["count"]), begun=begun, reconnected=reconnected, told=told,
        heard=[event.kind for event in heard])
"""


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_training_goes_on_with_the_same_proxy(service: DeployedService) -> None:
    namespace = service.namespace
    with open_way(namespace) as way:
        variables = dict(tenant(namespace))
        variables["KUBECONFIG"] = str(way.kubeconfig(namespace, namespace.user("tenant")))
        with program(PRELUDE + TRAINING, env=variables) as running:
            running.expect("training")
            running.tell("step")
            before = running.expect("step")["step"]
            way.refuse()
            assert way.cut()
            running.tell("step")
            time.sleep(AWAY_S)
            way.open()
            assert running.expect("step")["step"] > before
            running.tell("stop")
            trained = running.expect("trained")
            assert running.wait() == 0
        assert [kind for kind in trained["heard"] if kind in ("link.lost", "link.resumed")] == [
            "link.lost",
            "link.resumed",
        ]
        assert trained["begun"] == [0]
        assert trained["reconnected"] == []
        assert not [kind for kind in trained["told"] if "lost" in kind or "down" in kind], trained
    nothing_left(namespace)
