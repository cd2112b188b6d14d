"""Grain feeds arrays on two slices; where it stands is kept in Orbax's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grain.python as grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.e2e.libraries.comparing import Devices, Told, compared, directory, mesh

COUNT, BATCH = 40, 8


class Rows:
    """Records with random access, each made of its number."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"row": np.full((4,), index, np.float32), "index": np.int32(index)}

    def __repr__(self) -> str:  # Grain holds it against what is in the checkpoint
        return "Rows()"


def loader() -> Any:
    sampler = grain.IndexSampler(COUNT, grain.NoSharding(), shuffle=True, num_epochs=2, seed=3)
    return grain.DataLoader(
        data_source=Rows(), sampler=sampler, operations=[grain.Batch(BATCH)], worker_count=0
    )


def data_set() -> Any:
    rows = grain.MapDataset.source(Rows()).shuffle(seed=5).repeat(2)
    augmented = rows.random_map(_add_noise, seed=9)
    return augmented.batch(BATCH).to_iter_dataset(grain.ReadOptions(num_threads=2))


def _add_noise(record: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    return {**record, "row": record["row"] + random.normal(size=4).astype(np.float32)}


@compared
def data_loader(devices: Devices) -> Told:
    return restored_where_it_stood(devices, loader)


@compared
def map_dataset(devices: Devices) -> Told:
    return restored_where_it_stood(devices, data_set)


def restored_where_it_stood(devices: Devices, make: Callable[[], Iterable[Any]]) -> Told:
    """Some batches, a checkpoint, the rest; then the rest again, out of the checkpoint."""
    sharding = NamedSharding(mesh(devices), P(("slice", "chip")))
    step = jax.jit(lambda total, batch: total + (batch["row"].sum(1) * batch["index"]).sum())

    def feed(batch: dict[str, Any]) -> dict[str, jax.Array]:
        arrays = {
            name: jax.make_array_from_process_local_data(sharding, values)
            for name, values in batch.items()
        }
        assert all(len(array.addressable_shards) == len(devices) for array in arrays.values())
        return arrays

    def train(total: Any, batches: Iterator[Any]) -> tuple[Any, list[Any]]:
        seen = []
        for batch in batches:
            arrays = feed(batch)
            seen.append(np.asarray(arrays["index"]))
            total = step(total, arrays)
        return total, seen

    iterator: Any = iter(make())
    total = jax.device_put(np.float32(0), NamedSharding(mesh(devices), P()))
    target = {"total": ocp.utils.to_shape_dtype_struct(total)}
    for _ in range(3):
        total = step(total, feed(next(iterator)))
    with directory() as path, ocp.CheckpointManager(path) as manager:
        saved = ocp.args.Composite(
            state=ocp.args.StandardSave({"total": total}),
            data=grain.PyGrainCheckpointSave(iterator),
        )
        manager.save(0, args=saved)
        manager.wait_until_finished()
        end, rest = train(total, iterator)
        wanted = ocp.args.Composite(
            state=ocp.args.StandardRestore(target),
            data=grain.PyGrainCheckpointRestore(iter(make())),
        )
        restored = manager.restore(0, args=wanted)
    end_again, rest_again = train(restored.state["total"], restored.data)
    assert len(rest) == 2 * COUNT // BATCH - 3
    np.testing.assert_array_equal(rest_again, rest)
    np.testing.assert_array_equal(end_again, end)
    return {"order": rest, "end": end}
