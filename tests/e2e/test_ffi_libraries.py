"""Libraries of a user's own (`jax.ffi`): loaded where the operator allows it, else refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

from jax import ffi

from harness.embedded import KIND, embedded, eventually, nothing_left
from harness.programs import program, service

SOURCE = Path(__file__).parent / "scale.cc"

CALLS = """
import jax, jax.numpy as jnp, numpy as np
ONE = {"expected_tpu_instances": {"tpuv6e:2x2": 1}}
OPTIONS = ["ffi_targets:scale=libscale.so:ScaleHandler"]

def scale(x, by):
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("scale", result)(x, by=np.float32(by))

scaled = jax.jit(lambda x: scale(x, 3) + 1)
"""

ALLOWED = (
    CALLS
    + """
with isc_pathways.connect(proxy_options=OPTIONS, **ONE):
    assert scaled(jnp.arange(4.0)).tolist() == [1, 4, 7, 10]
    mesh = jax.make_mesh((4,), ("x",))
    rows = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, jax.P("x")))
    parts = jax.jit(jax.shard_map(
        lambda x: scale(x, 2), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
    assert parts(rows).sum() == 32
    try:
        jax.block_until_ready(jax.jit(lambda x: scale(x, 0))(jnp.ones(2)))
    except jax.errors.JaxRuntimeError as error:
        assert "by must not be 0" in str(error), error
    else:
        raise AssertionError("the handler's error is lost")
    try:
        jax.jit(lambda x: jax.ffi.ffi_call("other", x)(x))(jnp.ones(2))
    except jax.errors.JaxRuntimeError as error:
        assert "custom call 'other'" in str(error), error
    else:
        raise AssertionError("a function that was not named ran")
# Another proxy of the same service has none of it.
with isc_pathways.connect(**ONE):
    try:
        scaled(jnp.arange(4.0))
    except jax.errors.JaxRuntimeError as error:
        assert "custom call 'scale'" in str(error) and "ffi_targets" in str(error), error
    else:
        raise AssertionError("a library came along")
    # On this machine it is as ever.
    import ctypes
    here = ctypes.CDLL(LIBRARY)
    jax.ffi.register_ffi_target("scale", jax.ffi.pycapsule(here.ScaleHandler), platform="cpu")
    x = jax.device_put(np.arange(4, dtype="float32"), jax.devices("cpu")[0])
    assert scaled(x).tolist() == [1, 4, 7, 10]
for text, problem in (
    ("scale=libother.so:ScaleHandler", "No such file"),
    ("scale=liblink.so:ScaleHandler", "not a link out of it"),
    ("scale=libopen.so:ScaleHandler", "only its user can change"),
):
    try:
        isc_pathways.connect(proxy_options=[f"ffi_targets:{text}"], **ONE).start()
    except errors.InvalidRequestError as error:
        assert error.field == "proxy_options" and problem in str(error), error
    else:
        raise AssertionError(text)
for text, problem in (
    ("scale=libscale.so:Missing", "an FFI handler of this name"),
    ("Sharding=libscale.so:ScaleHandler", "a name that JAX or XLA does not use"),
):
    try:
        isc_pathways.connect(proxy_options=[f"ffi_targets:{text}"], **ONE).start()
    except errors.ProxyFailed as error:
        assert problem in str(error), error
    else:
        raise AssertionError(text)
say("done")
"""
)

NOT_ALLOWED = (
    CALLS
    + """
try:
    isc_pathways.connect(proxy_options=OPTIONS, **ONE).start()
except errors.InvalidRequestError as error:
    assert "--allow-ffi-libraries" in str(error), error
    say("done")
"""
)


def run(source: str) -> None:
    with program(source) as running:
        running.expect("done")
        assert running.wait() == 0, running.stderr


def test_a_library_is_loaded_where_the_operator_allows_it(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir(mode=0o755)
    library = libraries / "libscale.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", ffi.include_dir()]
    subprocess.run([*command, SOURCE, "-o", library], check=True)
    library.chmod(0o755)
    (tmp_path / "outside.so").write_bytes(b"")
    (libraries / "liblink.so").symlink_to(tmp_path / "outside.so")
    (libraries / "libopen.so").write_bytes(b"")
    (libraries / "libopen.so").chmod(0o777)
    with service(f"{KIND}=1", 0, ["--allow-ffi-libraries", str(libraries)]):
        run(ALLOWED.replace("LIBRARY", repr(str(library))))
        eventually(nothing_left, "all proxies to be gone")


def test_no_library_is_loaded_where_the_operator_does_not_allow_it() -> None:
    with embedded(1):
        run(NOT_ALLOWED)
