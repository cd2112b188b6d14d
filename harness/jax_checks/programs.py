"""Programs that are compiled ahead, exported or kept: the same as on the CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import (
    CLIENTS_OWN,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
)


@compared
def ahead_of_time(devices: Devices) -> Told:
    split, everywhere = (NamedSharding(mesh(devices), spec) for spec in (P("a", "b"), P()))
    shape = jax.ShapeDtypeStruct((8, 8), np.float32)
    values = np.ones((8, 8), np.float32)
    lowered = jax.jit(
        lambda x, y: (x @ y, x.sum()),
        in_shardings=(split, everywhere),
        out_shardings=(split, None),
        donate_argnums=0,
    ).lower(shape, shape)
    compiled: Any = lowered.compile()
    runtime: Any = compiled.runtime_executable()
    memory = compiled.memory_analysis()
    arguments = jax.device_put(values, split), jax.device_put(values, everywhere)
    sizes = [name for name in dir(memory) if name.endswith("in_bytes")]
    return tell_all(
        devices,
        {
            "cost": lambda: sorted(compiled.cost_analysis().items()),
            "memory": lambda: {name: getattr(memory, name) for name in sizes},
            "text": compiled.as_text,
            "in": lambda: [str(s.spec) for s in compiled.input_shardings[0]],
            "out": lambda: [str(s.spec) for s in compiled.output_shardings],
            "layouts": lambda: [f.layout.major_to_minor for f in compiled.input_formats[0]],
            "trees": lambda: [str(t) for t in (compiled.args_info, compiled.out_tree)],
            "call": lambda: compiled(*arguments),
            "wrong shape": lambda: compiled(values[:4], values),
            "wrong type": lambda: compiled(values.astype(np.int32), values),
            "wrong sharding": lambda: compiled(arguments[1], arguments[1]),
            "lowered": lambda: "stablehlo" in lowered.as_text(),
            "cost before": lowered.cost_analysis,
            "modules": lambda: [module.name for module in runtime.hlo_modules()],
            "serialised": lambda: len(runtime.serialize()) > 0,
        },
    )


@compared
def serialized_programs(devices: Devices) -> Told:
    split = NamedSharding(mesh(devices), P("a", "b"))
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    client: Any = devices[0].client
    load: Any = serialize_executable.deserialize_and_load

    def loaded(function: Any, argument: Any, at: Devices, **options: Any) -> Any:
        # (Called before, so that JAX has compiled it.)
        jitted = jax.jit(function, **options)
        wanted = jitted(jnp.copy(argument))
        kept = serialize_executable.serialize(jitted.lower(argument).compile())
        again = load(*kept, backend=client, execution_devices=at)
        result = again(jnp.copy(argument))
        return result, wanted, result.sharding == wanted.sharding, again.as_text() != ""

    # (Exact in float32: XLA's releases differ in the last bits of others.)
    def on_third(x: Any) -> Any:
        return (x * 2) @ x

    def with_constant(x: Any) -> Any:
        return x + values

    return tell_all(
        devices,
        {
            "spread": lambda: loaded(jnp.square, jax.device_put(values, split), devices[:8]),
            "on one": lambda: loaded(on_third, jax.device_put(values, devices[2]), [devices[2]]),
            "donated": lambda: loaded(
                jnp.negative, jax.device_put(values, devices[1]), [devices[1]], donate_argnums=0
            ),
            "constant": lambda: loaded(
                with_constant, jax.device_put(values, devices[0]), [devices[0]]
            ),
        },
    )


@compared
def programs_without_results(devices: Devices) -> Told:
    """XLA reports no shardings for a program over several devices without arguments."""
    everywhere = mesh(devices)
    split = NamedSharding(everywhere, P("a", "b"))
    values = jax.device_put(np.ones((8, 8), np.float32), split)

    def nothing(*_: Any) -> None:
        return None

    def mapped(*specs: Any) -> Any:
        return jax.shard_map(
            nothing, mesh=everywhere, in_specs=specs, out_specs=None, check_vma=False
        )

    def unused(function: Any) -> Any:
        return jax.jit(function, in_shardings=split, keep_unused=True)

    return tell_all(
        devices,
        {
            "an argument": lambda: unused(nothing)(values),
            "mapped": mapped(),
            "mapped over an argument": lambda: mapped(P("a"))(values),
            "mapped, in a jit": lambda: unused(mapped(P("a", "b")))(values),
            "mapped from a jit": lambda: jax.shard_map(
                jax.jit(lambda x: [x][1:], keep_unused=True),
                mesh=everywhere,
                in_specs=P("a"),
                out_specs=P("a"),
                check_vma=False,
            )(values),
        },
    )


@compared
def exported_programs(devices: Devices) -> Told:
    sharding = NamedSharding(mesh(devices), P("a", "b"))
    values = np.ones((8, 8), np.float32)

    def travelled(function: Any, *arguments: Any, order: int = 0, **options: Any) -> Any:
        exported = export.export(function, **options)(*arguments)
        return export.deserialize(exported.serialize(vjp_order=order))

    def sharded() -> Any:
        program = jax.jit(lambda x: x @ x, in_shardings=sharding)
        again = travelled(program, jax.ShapeDtypeStruct((8, 8), np.float32))
        return again.nr_devices, str(again.in_shardings_hlo), jax.jit(again.call)(
            jax.device_put(values, sharding)
        )  # fmt: skip

    def any_size() -> Any:
        rows = jax.ShapeDtypeStruct(export.symbolic_shape("n, 8"), np.float32)
        again = travelled(jax.jit(lambda x: (x * x).sum(0)), rows, order=1)
        return again.call(values), jax.grad(lambda x: again.call(x).sum())(values[:3])

    one = jax.ShapeDtypeStruct((8, 8), np.float32)
    return tell_all(
        devices,
        {
            "one device": lambda: travelled(jax.jit(jnp.sin), one).call(values),
            "sharded": sharded,
            "any size": any_size,
            "several platforms": lambda: travelled(
                jax.jit(jnp.cos), one, platforms=["tpu", "cpu"]
            ).call(values),
            "another platform": lambda: travelled(jax.jit(jnp.cos), one, platforms=["tpu"]).call(
                values
            ),
        },
    )


@compared
def persistent_compilation_cache(devices: Devices) -> Told:
    """The client does not serialise programs: nothing is cached, and everything works."""

    def entries(directory: str) -> Any:
        with jax.default_device(devices[1]):
            first = jax.jit(lambda x: jnp.cos(x) * 3 + 7)(1.0)
            jax.clear_caches()
            again = jax.jit(lambda x: jnp.cos(x) * 3 + 7)(1.0)
        return first == again, any(Path(directory).iterdir())

    settings = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_compilation_cache_dir": "",
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with tempfile.TemporaryDirectory() as directory:
        settings["jax_compilation_cache_dir"] = directory
        try:
            compilation_cache.reset_cache()
            for name, value in settings.items():
                jax.config.update(name, value)
            same, kept = entries(directory)
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    return {"same": bool(same), "kept": kept}


CLIENTS_OWN["persistent_compilation_cache"] = {"kept": False}
