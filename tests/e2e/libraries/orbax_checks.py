"""Orbax: states that lie on several slices, saved and restored to the last bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import type_handlers

from tests.e2e.libraries.comparing import (
    Devices,
    Told,
    assert_same,
    bits,
    compared,
    directory,
    mesh,
    put,
)

VALUES = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def state(devices: Devices) -> dict[str, Any]:
    """Every way to lie on two slices, and every kind of element that Orbax can write."""
    where = mesh(devices)
    key = jax.random.key(7)
    return {
        "split": put(where, VALUES, "slice", "chip"),
        "across": put(where, VALUES, ("slice", "chip")),
        "replicated": put(where, VALUES),
        "on a slice": jax.device_put(VALUES, NamedSharding(Mesh(devices[4:], "chip"), P("chip"))),
        "on a device": jax.device_put(VALUES, SingleDeviceSharding(devices[5])),
        "pinned": put(where, VALUES, "slice", memory="pinned_host"),
        "scalar": put(where, np.float32(3.5)),
        "key": put(where, key),
        "keys": put(where, jax.random.split(key, 8), ("slice", "chip")),
        "kinds": {
            kind: put(where, VALUES.astype(jnp.dtype(kind)), "slice", "chip")
            for kind in ("bfloat16", "float8_e4m3fn", "float4_e2m1fn", "int4", "int2", "bool")
        },
        "complex": put(where, (VALUES + 1j * VALUES).astype(np.complex64), "chip"),
        "numpy": VALUES.copy(),
        "step": 3,
    }


def abstract(tree: Any) -> Any:
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)


def elsewhere(tree: Any, sharding: Any) -> Any:
    """Returns the abstract state, all its arrays on another sharding."""
    return jax.tree.map(
        lambda leaf: (
            leaf.update(sharding=sharding) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        ),
        abstract(tree),
    )


def told(tree: Any) -> Told:
    """What was restored, comparable between platforms."""
    return {
        jax.tree_util.keystr(path): np.frombuffer(bits(leaf)[2], np.uint8)
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


@compared
def standard_checkpointer(devices: Devices) -> Told:
    saved = state(devices)
    with directory() as path, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "c", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(path / "c", abstract(saved))
        assert_same(restored, saved)
        for leaf, was in zip(jax.tree.leaves(restored), jax.tree.leaves(saved), strict=True):
            if isinstance(was, jax.Array):
                assert leaf.sharding == was.sharding
        if devices == jax.devices():  # the only ones that Orbax looks for
            by_itself = checkpointer.restore(path / "c")
            assert all(by_itself[k].sharding == saved[k].sharding for k in ("split", "on a device"))
    return told(restored)


@compared
def other_shardings(devices: Devices) -> Told:
    saved = {name: leaf for name, leaf in state(devices).items() if name in {"split", "key"}}
    turned = Mesh(np.array(devices)[::-1].reshape(4, 2), ("x", "y"))
    others = [jax.devices(platform) for platform in ("cpu", "proxy")]
    places = {
        "backwards": NamedSharding(turned, P()),
        "one slice": NamedSharding(Mesh(devices[4:], "x"), P()),
        "one device": SingleDeviceSharding(devices[6]),
        # A checkpoint does not know what it was written through.
        "the cpu": NamedSharding(mesh(others[0]), P()),
        "the proxy": NamedSharding(mesh(others[1]), P()),
    }
    with directory() as path, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "c", saved)
        checkpointer.wait_until_finished()
        restored = {}
        for name, place in places.items():
            restored[name] = checkpointer.restore(path / "c", elsewhere(saved, place))
            assert_same(restored[name], saved)
            assert restored[name]["split"].sharding == place
    return told(restored)


@compared
def a_device_by_its_name(devices: Devices) -> Told:
    saved = {"x": jax.device_put(VALUES, SingleDeviceSharding(devices[5]))}
    with directory() as path, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "c", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(path / "c")
    assert_same(restored, saved)
    # Among JAX's default devices, whatever the checkpoint was written through.
    assert restored["x"].sharding == SingleDeviceSharding(jax.devices()[5])
    return told(restored)


@compared
def pytree_checkpointer(devices: Devices) -> Told:
    where = mesh(devices)
    saved = {name: put(where, VALUES, "slice") for name in ("turned", "numpy", "cast", "left")}
    turned = NamedSharding(Mesh(np.array(devices)[::-1].reshape(4, 2), ("x", "y")), P("y", "x"))
    arguments = {
        "turned": ocp.ArrayRestoreArgs(sharding=turned),
        "numpy": ocp.RestoreArgs(restore_type=np.ndarray),
        "cast": ocp.ArrayRestoreArgs(sharding=saved["cast"].sharding, dtype=jnp.bfloat16),
        "left": ocp.RestoreArgs(),
    }
    item = {**dict.fromkeys(saved, 0), "left": ocp.PLACEHOLDER}
    with directory() as path, ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path / "c", saved)
        restored = checkpointer.restore(path / "c", item=item, restore_args=arguments)
        metadata = checkpointer.metadata(path / "c").item_metadata["turned"]
    assert restored["turned"].sharding == turned
    assert restored["left"] is ocp.PLACEHOLDER
    assert isinstance(restored["numpy"], np.ndarray)
    np.testing.assert_array_equal(restored["cast"], VALUES.astype(jnp.bfloat16))
    assert metadata.shape == VALUES.shape
    return {name: restored[name] for name in ("turned", "numpy", "cast")}


@compared
def checkpoint_manager(devices: Devices) -> Told:
    where = mesh(devices)
    step = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x + 1, tree), donate_argnums=0)
    state = {"split": put(where, VALUES, "slice", "chip"), "replicated": put(where, VALUES)}
    target = abstract(state)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: metrics["score"], enable_async_checkpointing=True
    )
    was = []
    with directory() as path, ocp.CheckpointManager(path, options=options) as manager:
        for number, score in enumerate((1.0, 3.0, 0.0, 2.0)):
            was.append(jax.tree.map(np.array, state))
            arguments = ocp.args.Composite(
                state=ocp.args.StandardSave(state), about=ocp.args.JsonSave({"step": number})
            )
            assert manager.save(number, args=arguments, metrics={"score": score})
            # What is being saved is given away; in the background its copy is written.
            state = step(state)
            assert not manager.reached_preemption(number)
        manager.wait_until_finished()
        assert manager.best_step() == 1
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(target), about=ocp.args.JsonRestore()
        )
        found = {number: manager.restore(number, args=arguments) for number in manager.all_steps()}
    assert [found[number].about["step"] for number in found] == [1, 3]
    for number, item in found.items():
        assert_same(jax.tree.map(np.array, item.state), was[number])
    return {f"{n} {k}": v for n, item in found.items() for k, v in item.state.items()}


@compared
def a_replica_read_once(devices: Devices) -> Told:
    """One slice reads, the other gets it over the mesh."""
    where, one = mesh(devices), Mesh(devices[:4], "chip")
    saved = {"split": put(where, VALUES, None, "chip"), "replicated": put(where, VALUES)}
    handler = type_handlers.SingleReplicaArrayHandler(
        replica_axis_index=0, primary_replica_id=0, broadcast_memory_limit_bytes=1 << 20
    )
    registry = type_handlers.create_type_handler_registry((jax.Array, handler))
    arguments = {
        name: type_handlers.SingleReplicaArrayRestoreArgs(
            sharding=leaf.sharding,
            single_replica_sharding=NamedSharding(one, leaf.sharding.spec),
            global_shape=leaf.shape,
            dtype=leaf.dtype,
        )
        for name, leaf in saved.items()
    }
    pytrees = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with directory() as path, ocp.Checkpointer(pytrees) as checkpointer:
        checkpointer.save(path / "c", args=ocp.args.PyTreeSave(saved))
        restored = checkpointer.restore(
            path / "c", args=ocp.args.PyTreeRestore(saved, restore_args=arguments)
        )
    assert_same(restored, saved)
    for name, leaf in restored.items():
        assert leaf.sharding == saved[name].sharding
    return told(restored)


@compared
def through_pinned_memory(devices: Devices) -> Told:
    """As Orbax does by itself where the platform is called `gpu`."""
    saved = {"split": put(mesh(devices), VALUES, "slice", "chip")}
    pytrees = ocp.PyTreeCheckpointHandler(enable_pinned_host_transfer=True)
    with directory() as path, ocp.Checkpointer(pytrees) as checkpointer:
        checkpointer.save(path / "c", args=ocp.args.PyTreeSave(saved))
        arguments = ocp.checkpoint_utils.construct_restore_args(saved)
        restored = checkpointer.restore(
            path / "c", args=ocp.args.PyTreeRestore(saved, restore_args=arguments)
        )
    assert_same(restored, saved)
    return told(restored)


@compared
def version_1(devices: Devices) -> Told:
    # Where it finds Pathways it wants Google's proxy, or Python beside the devices, for each array.
    assert not ocp.multihost.is_pathways_backend()
    saved = {"split": put(mesh(devices), VALUES, "slice", "chip"), "key": jax.random.key(1)}
    with directory() as path:
        ocp_v1.save(path / "c", saved)
        assert_same(ocp_v1.load(path / "c", abstract(saved)), saved)
        with ocp_v1.training.Checkpointer(path / "steps") as checkpointer:
            checkpointer.save_async(0, saved).result()
            restored = checkpointer.load(0, abstract(saved))
    assert_same(restored, saved)
    return told(restored)
