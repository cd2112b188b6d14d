"""What Flax and Orbax do on this machine's CPU while JAX is on slices."""

from __future__ import annotations

from pathlib import Path

from harness.embedded import embedded, eventually, nothing_left
from harness.programs import program

SOURCE = """
import jax, jax.numpy as jnp, numpy as np
import orbax.checkpoint as ocp
from flax import nnx

def where(tree):
    return sorted({d.platform for leaf in jax.tree.leaves(tree) for d in leaf.devices()})

path = os.environ["DIRECTORY"]
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}):
    here = jax.devices("cpu")[0]
    # A model that is made here, and goes to the slices.
    with jax.default_device(here):
        graph, made = nnx.split(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    made = nnx.to_pure_dict(made)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
    everywhere = jax.NamedSharding(mesh, jax.P())
    there = jax.device_put(made, everywhere)

    @jax.jit
    def apply(values, x):
        state = nnx.state(nnx.eval_shape(lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, values)
        return nnx.merge(graph, state)(x)

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = apply(there, x)
    with jax.default_device(here):
        wanted = apply(made, x)
    say("model", made=where(made), there=where(there), result=where(result),
        wanted=where(wanted), same=bool(np.allclose(result, wanted, rtol=1e-6)))

    # Saved from here, restored to the slices; and the other way round.
    def abstract(sharding):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), made)

    told = {}
    with ocp.StandardCheckpointer() as checkpointer:
        for name, tree, target in (
            ("up", made, everywhere),
            ("down", there, jax.sharding.SingleDeviceSharding(here)),
        ):
            checkpointer.save(f"{path}/{name}", tree)
            checkpointer.wait_until_finished()
            restored = checkpointer.restore(f"{path}/{name}", abstract(target))
            same = jax.tree.map(np.array_equal, restored, made)
            told[name] = [where(restored), all(jax.tree.leaves(same))]
    say("checkpoints", **told)
    del there, result, restored
# What was made here outlives the block.
say("after", made=where(made), platform=jax.default_backend(),
    sum=float(sum(jnp.sum(leaf - leaf) for leaf in jax.tree.leaves(made))))
"""


def test_models_and_checkpoints_of_this_machine(own_directories: Path, tmp_path: Path) -> None:
    with embedded(2), program(SOURCE, env={"DIRECTORY": str(tmp_path)}) as client:
        assert client.expect("model") == {
            "say": "model",
            "made": ["cpu"],
            "there": ["proxy"],
            "result": ["proxy"],
            "wanted": ["cpu"],
            "same": True,
        }
        checkpoints = client.expect("checkpoints")
        assert checkpoints["up"] == [["proxy"], True]
        assert checkpoints["down"] == [["cpu"], True]
        after = client.expect("after")
        assert (after["made"], after["platform"], after["sum"]) == (["cpu"], "cpu", 0.0)
        assert client.wait() == 0
        eventually(nothing_left, "all to be gone")
