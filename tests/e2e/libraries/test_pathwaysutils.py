"""pathwaysutils.initialize() on a proxy, and Orbax in and out of connect()."""

from __future__ import annotations

from pathlib import Path

from harness.embedded import KIND, embedded, eventually, nothing_left
from harness.processes import ServerProcess
from harness.programs import program
from tests.servers.proxy.conftest import MODULE

INITIALIZED = """
import pathlib
import jax, numpy as np
import pathwaysutils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import orbax.checkpoint as ocp

def told(act):
    try:
        return str(act())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
def save(path, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
def restore(path, target):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, target)
def split(devices, shape, spec):
    return NamedSharding(Mesh(np.array(devices).reshape(shape), ("slice", "chip")), spec)
values = np.arange(64, dtype=np.float32).reshape(8, 8)
def target(sharding):
    return {"x": jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)}
"""

BY_ITS_ENVIRONMENT = f"""{INITIALIZED}
from jax.experimental import colocated_python
from pathwaysutils import profiling
from pathwaysutils.elastic import elastic

names = ("start_trace", "stop_trace", "trace", "start_server", "stop_server")
were = {{name: getattr(jax.profiler, name) for name in names}}
pathwaysutils.initialize()
pathwaysutils.initialize()
say("initialized", used=pathwaysutils.is_pathways_backend_used(),
    patched=[name for name in names if getattr(jax.profiler, name) is not were[name]],
    cache=jax.config.jax_enable_compilation_cache)
sharding = split(jax.devices(), (2, 4), P("slice", "chip"))
x = jax.device_put(values, sharding)
say("computed", value=float(jax.jit(lambda x: (2 * x).sum())(x)), devices=len(jax.devices()),
    active=sorted(elastic.get_active_slice_indices()))
directory = os.environ["DIRECTORY"]
were["start_trace"](directory + "/trace")
jax.block_until_ready(jax.jit(lambda x: x + 1)(x))
were["stop_trace"]()
say("traces",
    local=told(lambda: jax.profiler.start_trace(directory)),
    with_block=told(lambda: jax.profiler.trace(directory).__enter__()),
    bucket=told(lambda: jax.profiler.start_trace("gs://bucket/traces")),
    own=[path.name.split(".", 1)[1] for path in pathlib.Path(directory).rglob("*.pb")])
say("not served",
    persistence=told(lambda: save(directory + "/c", {{"x": x}})),
    colocated=told(lambda: colocated_python.colocated_cpu_devices(jax.devices())))
"""

IN_AND_OUT = f"""{INITIALIZED}
path = os.environ["DIRECTORY"] + "/c"
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 2}}):
    pathwaysutils.initialize()
    sharding = split(jax.devices(), (2, 4), P("slice", "chip"))
    x = jax.device_put(values, sharding)
    save(path, {{"x": x}})
    say("saved", restored=np.array_equal(restore(path, target(sharding))["x"], values))
    del x, sharding
out = restore(path, target(split(jax.devices(), (1, 1), P())))["x"]
say("out", platform=jax.default_backend(), same=np.array_equal(out, values),
    cache=jax.config.jax_enable_compilation_cache)
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
    sharding = split(jax.devices(), (2, 2), P("chip"))
    again = restore(path, target(sharding))["x"]
    say("in", devices=len(again.sharding.device_set), same=np.array_equal(again, values))
    del again, sharding
"""

#: What pathwaysutils asks of Google's proxy by programs of its own.
NOT_SERVED = (
    "JaxRuntimeError: UNIMPLEMENTED: programs of type 'xla::ifrt::PluginProgram': "
    "this proxy runs only those of XLA"
)


def test_initialize_by_the_environment(own_directories: Path, tmp_path: Path) -> None:
    socket = own_directories / "s"
    flags = [f"--server_socket={socket}", f"--virtual_slices={KIND},{KIND}"]
    with ServerProcess(MODULE, flags) as proxy:
        assert proxy.ready is not None
        environment = {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://unix:{socket}",
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            "ENABLE_PATHWAYS_PERSISTENCE": "1",
            "DIRECTORY": str(tmp_path),
        }
        with program(BY_ITS_ENVIRONMENT, env=environment) as client:
            initialized = client.expect("initialized")
            assert initialized["used"] is True
            assert initialized["cache"] is False
            assert len(initialized["patched"]) == 5
            computed = client.expect("computed")
            assert (computed["value"], computed["devices"]) == (4032.0, 8)
            assert computed["active"] == [0, 1]
            traces = client.expect("traces")
            assert traces["local"].startswith("ValueError: Path must be a GCS path, got /")
            assert traces["with_block"] == traces["local"]
            assert traces["bucket"] == NOT_SERVED
            assert traces["own"] == ["xplane.pb", "xplane.pb"]  # of this process, and of the proxy
            not_served = client.expect("not served")
            assert not_served["persistence"] == NOT_SERVED
            assert not_served["colocated"].startswith("RuntimeError: Unknown backend cpu")
            assert client.wait() == 0
        assert proxy.stop() == 0


def test_checkpoints_in_and_out_of_connect(tmp_path: Path) -> None:
    with embedded(2), program(IN_AND_OUT, env={"DIRECTORY": str(tmp_path)}) as client:
        assert client.expect("saved")["restored"] is True
        out = client.expect("out")
        assert (out["platform"], out["same"], out["cache"]) == ("cpu", True, True)
        inside = client.expect("in")
        assert (inside["devices"], inside["same"]) == (4, True)
        assert client.wait() == 0, client.stderr
        assert "still referenced" not in "".join(client.stderr)  # nothing was kept of the service
        eventually(nothing_left, "all to be gone")
