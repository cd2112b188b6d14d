"""Names of devices and platforms: never this machine's CPU where the proxy is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.processes import ServerProcess
from harness.proxy.executors import running_executors
from tests.jax_client.conftest import PRELUDE, Proxies, run_program
from tests.jax_client.local_cpu import ATTACHED, MADE, _by_environment

NAMES = """
import jax, jax.numpy as jnp
from jax import export

there = jax.devices()
named = {jax.default_backend(), *(d.platform for d in there), there[0].client.platform}
assert named == {"proxy"}, named
assert jax.devices(jax.default_backend()) == there
assert jax.devices(there[0].platform) == there
assert jax.local_devices(backend=jax.default_backend()) == there
assert jax.device_count(jax.default_backend()) == len(there)
assert jax.jit(jnp.sin, backend=jax.default_backend())(1.0).devices() == {there[0]}
with jax.default_device(there[1]):
    assert jnp.ones(2).devices() == {there[1]}
mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices(jax.default_backend())[:4])
spread = jax.NamedSharding(mesh, jax.P("x", "y"))
assert (jax.device_put(jnp.ones((4, 4)), spread) @ jnp.ones((4, 4))).sum() == 64

# Lowered by the rules for what the proxy has: these are for CPUs only.
eight = jnp.eye(8) * 2
assert jnp.linalg.qr(eight)[1].shape == (8, 8)
assert jnp.allclose(jnp.linalg.eigvals(eight), 2)
assert jax.jit(lambda: jax.lax.platform_dependent(cpu=lambda: 1, default=lambda: 2))() == 1
assert "stablehlo" in jax.jit(jnp.sin).lower(1.0).as_text()
assert jax.jit(jnp.sin).trace(1.0).lower(lowering_platforms=("proxy",)).as_text()
exported = export.export(jax.jit(jnp.linalg.cholesky))(jax.ShapeDtypeStruct((2, 2), "float32"))
assert exported.platforms == ("cpu",)
assert exported.call(jnp.eye(2)).devices() == {there[0]}
assert jax.random.gamma(jax.random.key(0), 2.0, (3,)).devices() == {there[0]}
assert jax.grad(lambda a: jax.random.gamma(jax.random.key(0), a))(2.0) > 0
"""

GPUS = """
import jax, jax.numpy as jnp

there = jax.devices()
assert jax.default_backend() == there[0].platform == "gpu"
assert jax.devices("gpu") == jax.devices("cuda") == jax.devices("proxy") == there
assert jax.jit(lambda: jax.lax.platform_dependent(cuda=lambda: 1, default=lambda: 2))() == 1
called = jax.jit(lambda x: jax.pure_callback(lambda x: x, x, x))
assert "xla_ffi_python_gpu_callback" in called.lower(1.0).as_text()
try:
    called(1.0)
except jax.errors.JaxRuntimeError as error:
    assert "UNIMPLEMENTED: a proxy for cuda does not run custom call" in str(error), error
else:
    raise AssertionError("it called back")
"""


def test_names_of_the_proxys_devices_never_mean_the_local_cpu(proxies: Proxies) -> None:
    run_program(PRELUDE + MADE + ATTACHED + NAMES + "assert not made", proxies[0].address)


def test_names_mean_the_proxy_without_local_devices(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + "attach(ProxyTarget(address=sys.argv[1], local_devices=False), timeout=deadline(60))\n"
        + NAMES
        + """
assert jax.config.jax_platforms == "proxy"
for use in (lambda: jax.devices("cpu"), lambda: jax.debug.print("x")):
    try:
        use()
    except RuntimeError as error:
        causes = f"{error} {error.__cause__}"
        assert "Unknown backend cpu. Available backends are ['proxy']" in causes, causes
    else:
        raise AssertionError("there is a local CPU")
""",
        proxies[0].address,
    )


@pytest.mark.parametrize("look_up", ["jax.devices('proxy')", "jax.local_devices(backend='proxy')"])
def test_the_first_lookup_by_the_proxys_name_finds_the_proxy(
    proxies: Proxies, foreign_python: str, own_directories: Path, look_up: str
) -> None:
    program = f"""
import jax
found = {look_up}
assert found[0].client is jax.devices()[0].client is not jax.devices("cpu")[0].client, found
"""
    _by_environment(proxies[1], program, own_directories, foreign_python)


def test_names_are_the_same_by_environment(
    proxies: Proxies, foreign_python: str, own_directories: Path
) -> None:
    _by_environment(proxies[1], NAMES, own_directories, foreign_python)


def test_slices_are_found_by_their_platform(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + MADE
        + """
from jaxlib import _jax
# As a proxy of TPUs has it.
_jax.Client.platform = property(lambda client: "cpu" if client in made else "tpu")
"""
        + ATTACHED
        + """
import jax
there = jax.devices()
assert jax.default_backend() == "tpu"
assert jax.devices("tpu") == jax.devices(jax.default_backend()) == jax.devices("proxy") == there
assert jax.device_count("tpu") == len(there) == 8
assert not made
assert jax.devices("cpu")[0].client is made[0]
try:
    jax.devices("gpu")
except RuntimeError as error:
    assert "gpu" in str(error), error
else:
    raise AssertionError("there is a GPU")
attachment.detach()
try:
    jax.devices("tpu")
except RuntimeError as error:
    assert "tpu" in str(error), error
else:
    raise AssertionError("there is a TPU")
""",
        proxies[0].address,
    )


def test_programs_are_lowered_for_the_proxys_gpus() -> None:
    flags = ["--virtual_slices=tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
    host = ["--instance_type=tpuv6e:1x1", "--first_device=0"]
    with (
        running_executors(host, platform="cuda") as running,
        ServerProcess(
            "shared_pathways_service.servers.proxy", [*flags, *running.proxys_flags]
        ) as proxy,
    ):
        run_program(PRELUDE + ATTACHED + GPUS, f"127.0.0.1:{(proxy.ready or {})['port']}")
        proxy.stop()
