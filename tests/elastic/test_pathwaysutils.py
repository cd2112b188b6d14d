"""One program by two imports: pathwaysutils' elastic manager, and this project's, on our proxy."""

from __future__ import annotations

import pytest

from harness.embedded import embedded
from harness.programs import program

pytestmark = pytest.mark.race

IMPORTS = {
    "theirs": """
from pathwaysutils.elastic import elastic, manager
""",
    "ours": """
from shared_pathways_service import elastic
from shared_pathways_service.elastic import manager
""",
}

#: As its docstrings have it: the function keeps its own state, and asks to be interrupted.
PROGRAM = """
from harness.deadlines import deadline
connection = isc_pathways.connect(
    expected_tpu_instances={"tpuv6e:2x2": 3}, queue_timeout=deadline(120))
try:
    connection.start()
    IMPORT
    import itertools, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from shared_pathways_service.testing.faults import EmbeddedSlices

    work = jax.jit(lambda x: (x * 2).sum())
    counts, called, wrong = [], [], []
    elastic_manager = manager.Manager()
    assert elastic_manager.active_slice_indices == {0, 1, 2} == elastic_manager.all_slice_indices
    assert len(elastic.get_slice_to_devices(jax.devices())[0]) == 4

    @elastic_manager.elastic_retry(
        max_retries=20, minimum_slice_count=2, poll_interval=0.2, timeout=deadline(120),
        pre_callback=lambda: called.append("before"),
        on_elastic_event_callback=lambda: called.append("event"))
    def train(world, name):
        active = sorted(elastic_manager.active_slice_indices)
        batch = elastic_manager.scale_by_active_slices(24)
        devices = [d for i in active for d in elastic_manager.slice_to_devices[i]]
        cut = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
        assert elastic_manager.default_device in devices
        for step in itertools.count():
            if counts and counts[-1] == 3 and min(counts) == 2:
                return name
            if step == 4 and not called.count("event"):
                world.kill(1, down_for=3000.0)
            if step == 2 and len(active) == 2:
                # Not before: a slice that is back when its loss is noticed is not missed.
                world.revive(1)
            total = float(work(jax.device_put(np.ones(batch, np.float32), cut)))
            if total != 2 * batch:
                wrong.append(total)
            if counts[-1:] != [len(active)]:
                counts.append(len(active))
            if elastic_manager.available_inactive_slices:
                raise manager.ScaleUpSignalError()

    with EmbeddedSlices(connection.proxy_job_name) as world:
        assert train(world, "done") == "done"
    elastic_manager.close()
    say("result", counts=counts, called=called, wrong=wrong)
    assert elastic.wait_for_slices(3, poll_interval=0.2, timeout=deadline(120)) == {0, 1, 2}
finally:
    connection.close()
say("left")
"""


@pytest.mark.parametrize(
    ("whose", "engine"),
    [
        ("theirs", "local"),
        ("ours", "local"),
        pytest.param("theirs", "distributed", marks=pytest.mark.thorough),
    ],
)
def test_a_program_made_for_pathwaysutils(whose: str, engine: str) -> None:
    imported = IMPORTS[whose].strip("\n").replace("\n", "\n    ")
    with (
        embedded(3, 0, f"--engine={engine}"),
        program(PROGRAM.replace("IMPORT", imported)) as client,
    ):
        result = client.expect("result")
        assert result["counts"] == [3, 2, 3]
        assert result["called"].count("before") == result["called"].count("event") + 1
        assert not result["wrong"]
        client.expect("left")
        assert client.wait() == 0
