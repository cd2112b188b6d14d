"""JAX on a proxy by its environment alone, in programs that know nothing of this package."""

from __future__ import annotations

import functools
import importlib
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_pathways_service.jax_client import ProxyTarget, standalone
from shared_pathways_service.testing.google_images.alts_handshake import serving_alts
from tests.jax_client.conftest import CREATING, PRELUDE, REPOSITORY, Proxies, run_program

RunForeign = Callable[..., subprocess.CompletedProcess[str]]

#: A program that never heard of this project, in an environment without it.
FOREIGN = """
import importlib.util, sys
assert importlib.util.find_spec("shared_pathways_service") is None
import jax, jax.numpy as jnp
"""


@pytest.fixture
def foreign(proxies: Proxies, own_directories: Path) -> dict[str, str | None]:
    """The environment that `sps run` gives to a program, for the proxy with a token."""
    proxy = proxies[1]
    target = ProxyTarget(address=proxy.address, token=proxy.token, token_file=proxy.token_file)
    paths = {"PYTHONPATH": str(standalone.place(own_directories))}
    return {**target.environment, **paths}


@pytest.fixture
def run_foreign(
    foreign: dict[str, str | None], foreign_python: str, own_directories: Path
) -> RunForeign:
    """Runs a program as `sps run` does, in an environment that does not have this package."""
    return functools.partial(run_program, env=foreign, cwd=own_directories, python=foreign_python)


def test_calls_that_would_end_the_process_raise(run_foreign: RunForeign) -> None:
    # `stress/jaxlib_entries` looks for more of them.
    run_foreign(
        FOREIGN
        + """
import numpy as np
from jax.experimental import transfer
here, there = jax.local_devices(backend="cpu")[0], jax.devices()[0]
assert "proxy" in there.client.runtime_type
for client, call in (
    (there.client, lambda client: transfer.start_transfer_server(client, "127.0.0.1:0")),
    (there.client, lambda client: client.get_default_layout(np.dtype("int8"), (8,), here)),
    (here.client, lambda client: client.get_default_layout(np.dtype("int8"), (8,), there)),
):
    try:
        call(client)
    except jax.errors.JaxRuntimeError as error:
        assert "local_devices" in str(error) or "of another client" in str(error), error
    else:
        raise AssertionError("the call returned")
server = transfer.start_transfer_server(here.client, "127.0.0.1:0", ["127.0.0.1:0"])
connection = server.connect(server.address())
array = jax.device_put(np.arange(8.0, dtype=np.float32), here)
one, other = (
    jax.ShapeDtypeStruct((8,), np.float32, sharding=jax.sharding.SingleDeviceSharding(device))
    for device in (here, there)
)
for call, words in (
    (lambda: connection.pull(1, [one, other]), "of another client"),
    (lambda: connection.pull(1, [other, one]), "of another client"),
    (lambda: connection._pull_into_flat(1, [jax.device_put(array, there)], [slice(8)]), "needs"),
):
    try:
        call()
    except jax.errors.JaxRuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError("the call returned")
server.await_pull(1, [array])
assert connection.pull(1, [one])[0].tolist() == array.tolist()
here.client.get_default_layout(np.dtype("int8"), (8,), here)
there.client.get_default_layout(np.dtype("int8"), (8,), there)
"""
    )


#: Of the copy, beside its `__init__`.
FILES = (
    *(
        "callback_barrier",
        "callback_dispatch",
        "callback_lanes",
        "callback_names",
        "callback_stream",
        "callback_wire",
    ),
    *(
        "callbacks",
        "dumps",
        "explaining",
        "fatal_calls",
        "forked",
        "greeting",
        "local",
        "workarounds",
        "quiet",
    ),
    *("run_notes", "sockets", "strict", "attempts", "compile_calls", "executables", "host_copies"),
    *("held_session", "timeout_table", "timeouts", "factor", "slowness", "transfer_files"),
    *("device_profile", "trace_files", "traced_proxies"),
)
#: Files that come with those of time-outs, and are not imported.
UNUSED = ("within",)


def test_its_files_are_enough_and_the_exit_code_is_the_programs(
    run_foreign: RunForeign,
) -> None:
    done = run_foreign(
        FOREIGN
        + f"FILES = {FILES}"
        + """
assert [d.slice_index for d in jax.devices()] == [0, 0, 0, 0]
held = jnp.arange(3.0) * 2
assert held.tolist() == [0, 2, 4]
ours = {m for m in sys.modules if "sps" in m or "pathways" in m}
package = "jax_plugins.sps_proxy"
assert ours == {package, *(f"{package}.{name}" for name in FILES)}, ours
import numpy as np
flipped = np.arange(3.0)[::-1]
assert jnp.asarray(flipped).tolist() == [2, 1, 0]
sys.exit(7)
""",
        code=7,
    )
    assert done.stderr == ""


DUMPING = """
import warnings
import jax, jax.numpy as jnp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jax.devices()
    for _ in range(2):
        jitted = jax.jit(lambda x: x + 1, compiler_options=OPTIONS)
        assert jitted(jnp.ones(3)).tolist() == [2, 2, 2]
    for device in jax.devices("cpu"):
        jitted = jax.jit(lambda x: x * 2, compiler_options=OPTIONS)
        assert jitted(jax.device_put(1, device)) == 2
told = [str(one.message) for one in caught if "dumps" in str(one.message)]
"""


def test_a_program_that_asks_for_dumps_is_warned_once(
    foreign: dict[str, str | None], proxies: Proxies, own_directories: Path
) -> None:
    dumps = own_directories / "dumps"
    by_options = DUMPING.replace("OPTIONS", f'{{"xla_dump_to": "{dumps}"}}')
    by_flags = DUMPING.replace("OPTIONS", "None")
    flags = {"XLA_FLAGS": f"--xla_dump_to={dumps} --xla_dump_hlo_as_text"}
    run_program(
        by_options + 'assert len(told) == 1, told\nassert "compiler_options" in told[0]',
        env=foreign,
    )
    run_program(
        by_flags
        + """
assert len(told) == 1, told
assert "XLA_FLAGS requests dumps of XLA (xla_dump_to, xla_dump_hlo_as_text)" in told[0], told
""",
        env=foreign | flags,
    )
    run_program(by_flags + "assert not told, told", env=foreign)
    # Another project's proxy may well write them: it has no token.
    without = {name: value for name, value in foreign.items() if name != "SPS_TOKEN_FILE"}
    without["JAX_BACKEND_TARGET"] = f"grpc://{proxies[0].address}"
    run_program(by_options + "assert not told, told", env=without | flags)


FAILING = """
try:
    jax.devices()
except RuntimeError as error:
    text = str(error)
else:
    raise AssertionError("connected")
assert os.environ.get(variable) == before
"""


@pytest.fixture
def alone(own_directories: Path) -> Callable[..., None]:
    """Runs a program with the plug-in, and with the variable as given."""

    def run(source: str, address: str, credentials: str | None) -> None:
        env = {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://{address}",
            "PYTHONPATH": str(standalone.place(own_directories)),
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": credentials,
        }
        run_program(f"{CREATING}import jax\n{source}", env=env)

    return run


@pytest.mark.parametrize("credentials", [None, "true"])
def test_the_plugin_creates_its_client_with_plaintext_and_puts_the_variable_back(
    proxies: Proxies, alone: Callable[..., None], credentials: str | None
) -> None:
    alone(
        """
assert len(jax.devices()) == 8
assert seen == {"true"}, seen
assert os.environ.get(variable) == before
""",
        proxies[0].address,
        credentials,
    )


@pytest.mark.parametrize("credentials", [None, "true"])
def test_the_plugin_recognizes_a_proxy_that_hangs_up_on_plaintext(
    alone: Callable[..., None], credentials: str | None
) -> None:
    with serving_alts() as address:
        alone(
            FAILING
            + """
assert seen == {"true"}, seen
assert "hangs up on plaintext" in text and variable + "=true" in text, text
""",
            address,
            credentials,
        )


def test_the_plugin_keeps_alts_where_it_is_asked_for(
    proxies: Proxies, alone: Callable[..., None]
) -> None:
    alone(
        FAILING
        + """
assert seen == {"false"}, seen
# The first up to JAX 0.11, the second from 0.12 on.
assert "Invalid credentials" in text or "ChannelCredentials argument is null" in text, text
""",
        proxies[0].address,
        "false",
    )


def test_the_plugin_refuses_a_value_that_would_be_ignored(
    proxies: Proxies, alone: Callable[..., None]
) -> None:
    alone(
        FAILING + """assert not seen and "='1'" in text and "'true'" in text, (seen, text)""",
        proxies[0].address,
        "1",
    )


def test_a_library_for_pathways_may_register_before_and_after_and_a_target_be_switched_off(
    run_foreign: RunForeign,
) -> None:
    run_foreign(
        FOREIGN
        + """
from jax.extend import backend
def never():
    raise AssertionError("has no token")
backend.register_backend_factory("proxy", never, priority=-1)
assert len(jax.devices()) == 4
backend.register_backend_factory("proxy", never, priority=-1)
assert jnp.ones(2).tolist() == [1, 1]
jax.config.update("jax_platforms", None)
backend.clear_backends()
assert [d.platform for d in jax.devices()] == ["cpu"], "it is dialled all the same"
"""
    )


def test_both_the_file_and_the_entry_point_do_no_harm(foreign: dict[str, str | None]) -> None:
    paths = f"{REPOSITORY}:{foreign['PYTHONPATH']}"
    run_program(
        """
import sys
import jax
from jax._src import xla_bridge
from shared_pathways_service.jax_client.plugin import plugin
discover = xla_bridge.discover_pjrt_plugins
def both():
    plugin.initialize()
    discover()
    plugin.initialize()
xla_bridge.discover_pjrt_plugins = both
assert len(jax.devices()) == 4
assert "jax_plugins.sps_proxy" in sys.modules
""",
        env={**foreign, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"JAX_PLATFORMS": None},
        {"JAX_PLATFORMS": "cpu", "JAX_BACKEND_TARGET": "grpc://127.0.0.1:1"},
    ],
    ids=["nothing asked for", "cpu"],
)
def test_plain_programs_are_left_alone(
    foreign: dict[str, str | None], run_foreign: RunForeign, changed: dict[str, str | None]
) -> None:
    run_foreign(
        FOREIGN
        + """
from jax._src import xla_bridge
assert [d.platform for d in jax.devices()] == ["cpu"]
assert "jax_plugins.sps_proxy" in sys.modules
# From 0.12 on JAX has a factory of its own; ours takes its place where a proxy is asked for.
assert (registered := xla_bridge._backend_factories.get("proxy")) is None or (
    registered.factory is xla_bridge.make_ifrt_proxy_client
)
""",
        env={**foreign, "JAX_BACKEND_TARGET": None, **changed},
    )


def test_a_path_with_capitals_is_found_by_its_own_spelling(
    proxies: Proxies,
    foreign: dict[str, str | None],
    run_foreign: RunForeign,
    own_directories: Path,
) -> None:
    link = own_directories / "Capitals"
    link.symlink_to(proxies[1].address.removeprefix("unix:"))
    run_foreign(
        FOREIGN + "assert len(jax.devices()) == 4\n",
        env={**foreign, "JAX_BACKEND_TARGET": f"grpc://unix:{link}"},
    )


def test_connecting_from_a_program_that_is_on_a_proxy_already(
    proxies: Proxies, foreign: dict[str, str | None]
) -> None:
    run_program(
        """
import sys
import jax, jax.numpy as jnp
from harness.deadlines import deadline
from shared_pathways_service.jax_client import ProxyTarget, attach
outer = jnp.arange(4.0) + 1
assert len(jax.devices()) == 4
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
assert len(jax.devices()) == 8
attachment.detach()
assert len(jax.devices()) == 4
assert (outer + 1).tolist() == [2, 3, 4, 5]
""",
        proxies[0].address,
        env={**foreign, "PYTHONPATH": f"{REPOSITORY}:{foreign['PYTHONPATH']}"},
    )


def test_the_copy_is_made_once_and_is_the_same(tmp_path: Path) -> None:
    root = standalone.place(tmp_path)
    (package,) = (root / "jax_plugins").iterdir()
    first = {path.name: path.stat() for path in package.iterdir()}
    assert standalone.place(tmp_path) == root
    assert {path.name: path.stat() for path in package.iterdir()} == first
    assert set(first) == {f"{name}.py" for name in ("__init__", *FILES, *UNUSED)}
    assert [path.name for path in root.iterdir()] == ["jax_plugins"]
    assert not (root / "jax_plugins" / "__init__.py").exists(), "it must stay a namespace package"


def test_the_entry_point_is_there() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (name,) = project["entry-points"]["jax_plugins"].values()
    assert callable(importlib.import_module(name).initialize)


def test_attempts_that_fail_leave_no_directory(own_directories: Path) -> None:
    shared = own_directories / "shared"
    shared.mkdir()
    done = run_program(
        PRELUDE
        + """
from pathlib import Path
from shared_pathways_service.jax_client.plugin import plugin

nobody, shared = f"grpc://unix:{sys.argv[1]}/nobody", Path(sys.argv[1])
made, mkdir = [], Path.mkdir
Path.mkdir = lambda path, *args, **kwargs: (made.append(path), mkdir(path, *args, **kwargs))
try:
    plugin.connect(nobody, token=None, timeout=1.0, transfer_dir=shared)
except TimeoutError:
    pass
wait_until("the end of attempts to connect", lambda: not connecting())
print(len(made), made[0].parent == shared, os.listdir(shared))
""",
        str(shared),
    )
    assert done.stdout.endswith(" True []\n")
