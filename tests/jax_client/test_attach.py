"""Attaching JAX to real proxies and detaching it, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jax_client.conftest import (
    CREATING,
    PRELUDE,
    TOKEN,
    Proxies,
    run_program,
)


def test_jax_imported_inside_the_block_is_on_the_cpu_afterwards(
    proxies: Proxies,
) -> None:
    run_program(
        PRELUDE
        + """
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import jax, jax.numpy as jnp
assert len(jax.devices()) == 8
attachment.detach()
assert jax.config.jax_platforms is None, jax.config.jax_platforms
assert jax.jit(lambda x: x + 1)(1.0) == 2
assert [d.device_kind for d in jax.devices()] == ["cpu"]
""",
        proxies[0].address,
    )


@pytest.mark.thorough
def test_twenty_cycles_leave_nothing_and_cpu_arrays_stay_usable(
    proxies: Proxies,
) -> None:
    run_program(
        PRELUDE
        + """
import jax, jax.numpy as jnp
from shared_pathways_service.jax_client.plugin import sockets

open_, guarded, token = sys.argv[1:]
targets = (ProxyTarget(address=open_), ProxyTarget(address=guarded, token=token))
double = jax.jit(lambda x: 2 * x)
# Committed: mixes with arrays of its own client only.
before = jax.device_put(jnp.arange(4.0), jax.devices()[0])
assert double(before).tolist() == [0, 2, 4, 6]
at_first = snapshot()

def cycle(i):
    attachment = attach(targets[i % 2], timeout=deadline(60))
    assert len(attachment.devices) == (8, 4)[i % 2], attachment.devices
    assert jax.devices() == list(attachment.devices)
    assert os.environ["JAX_PLATFORMS"] == "proxy,cpu"
    assert os.environ["JAX_BACKEND_TARGET"] == "grpc://" + targets[i % 2].address
    assert double(jnp.arange(8.0)).tolist() == list(range(0, 16, 2))
    attachment.detach()
    attachment.detach()
    after = jax.device_put(jnp.ones(4), jax.devices()[0])
    assert double(before + after).tolist() == [2, 4, 6, 8]
    assert jax.devices()[0].platform == "cpu" and len(jax.devices()) == 1

def tasks():
    return len(os.listdir("/proc/self/task"))

def descriptors():
    return len(os.listdir("/dev/fd"))

cycle(0)
cycle(1)
time.sleep(0.5)  # what gRPC makes once and keeps is made by now; only fewer is allowed below
had = tasks(), descriptors()
for i in range(20):
    cycle(i)
wait_until(f"{had} or fewer", lambda: tasks() <= had[0] and descriptors() <= had[1])
assert [sockets.count(sockets.peer_at(t.address, 1)) for t in targets] == [0, 0]
now = snapshot()
for name, value in at_first.items():
    assert now[name] == value, (name, value, now[name])
""",
        proxies[0].address,
        proxies[1].address,
        TOKEN,
    )


def test_referenced_clients_are_shut_down_and_reported(proxies: Proxies) -> None:
    done = run_program(
        PRELUDE
        + """
import jax, jax.numpy as jnp
from shared_pathways_service.jax_client.plugin import sockets
target = ProxyTarget(address=sys.argv[1])
peer = sockets.peer_at(target.address, 10)

attachment = attach(target, timeout=deadline(60))
mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
assert sockets.count(peer) > 0
attachment.detach()
# (On a busy machine the client's threads may still be at closing what was shut down.)
wait_until("the end of sockets", lambda: sockets.count(peer) == 0)
print("a mesh was held", file=sys.stderr)

attachment = attach(target, timeout=deadline(60))
array = jnp.arange(3.0) + 1
attachment.detach()
wait_until("the end of sockets", lambda: sockets.count(peer) == 0)
try:
    np.asarray(array)
except jax.errors.JaxRuntimeError as error:
    assert "UNAVAILABLE" in str(error)
else:
    raise AssertionError("could be read")
del array

attachment = attach(target, timeout=deadline(60))
arrays = [jnp.arange(n + 1.0) + 1 for n in range(4)]
attachment.detach()

try:
    attachment = attach(target, timeout=deadline(60))
    late = jnp.arange(5.0) + 1
    late / undefined
except NameError:
    attachment.detach()
assert jnp.arange(2).tolist() == [0, 1]
""",
        proxies[0].address,
    )
    before, _, after = done.stderr.partition("a mesh was held\n")
    assert before == ""
    assert "1 array on the service (float32[3]) is still referenced" in after
    assert "copy it with jax.device_get" in after
    assert "4 arrays on the service (" in after
    assert ", ...) are still referenced" in after
    assert "copy them with jax.device_get" in after
    assert "float32[5]" not in after, "an exception on its way is told of already"


def test_a_second_attachment_is_refused_while_one_is_live(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + """
from shared_pathways_service.errors import ConnectionClosed, InvalidRequestError
target = ProxyTarget(address=sys.argv[1])
attachment = attach(target, timeout=deadline(60))
try:
    attach(target, timeout=deadline(60))
except InvalidRequestError as error:
    assert error.field == "connect" and target.address in error.message
else:
    raise AssertionError("accepted")
assert len(attachment.devices) == 8
attachment.detach()
try:
    attachment.devices
except ConnectionClosed:
    pass
else:
    raise AssertionError("still has devices")
attach(target, timeout=deadline(60)).detach()
""",
        proxies[0].address,
    )


@pytest.mark.parametrize("before", [None, "1", "false", "true"])
def test_the_callers_credentials_are_restored(proxies: Proxies, before: str | None) -> None:
    run_program(
        PRELUDE
        + CREATING
        + """
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import jax
assert len(jax.devices()) == 8
assert seen == {"true"}, seen
assert os.environ[variable] == "true"  # of child processes, too
attachment.detach()
assert os.environ.get(variable) == before
""",
        proxies[0].address,
        env={"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": before},
    )


def test_local_devices_stay_usable(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + """
import jax, jax.numpy as jnp
target = ProxyTarget(address=sys.argv[1], local_devices=True)
for attempt in range(2):
    attachment = attach(target, timeout=deadline(60))
    assert os.environ["JAX_PLATFORMS"] == "proxy,cpu"
    (local,) = jax.devices("cpu")
    here = jax.device_put(jnp.arange(3.0), local)
    there = jax.device_put(here, attachment.devices[5])
    assert there.devices() == {attachment.devices[5]}
    assert jnp.ones(1).devices() == {attachment.devices[0]}
    back = jax.device_put(there + 1, local)
    del there
    attachment.detach()
    # The local client is the same inside and after.
    after = jax.device_put(jnp.ones(3), jax.devices()[0])
    assert (here + back + after).tolist() == [2, 4, 6]
""",
        proxies[0].address,
    )


def test_settings_that_bypass_the_proxy_are_suspended(
    proxies: Proxies, own_directories: Path
) -> None:
    run_program(
        PRELUDE
        + """
import jax, jax.numpy as jnp
address, cache = sys.argv[1:]
jax.config.update("jax_compilation_cache_dir", cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_default_device", jax.devices()[0])
had = snapshot()
assert jax.jit(lambda x: x + 41)(jnp.ones(3)).tolist() == [42] * 3
stored = set(os.listdir(cache))
assert stored

attachment = attach(ProxyTarget(address=address), timeout=deadline(60))
assert "JAX_PLATFORM_NAME" not in os.environ
assert jnp.ones(3).devices() == {attachment.devices[0]}
assert jax.jit(lambda x: x + 42)(jnp.ones(3)).tolist() == [43] * 3
assert set(os.listdir(cache)) == stored
attachment.detach()

now = snapshot()
assert now == had, (now, had)
jax.jit(lambda x: x + 43)(jnp.ones(3)).block_until_ready()
assert set(os.listdir(cache)) > stored, "the cache is on again"
""",
        proxies[0].address,
        str(own_directories),
        env={"JAX_PLATFORM_NAME": "cpu"},
    )


def test_a_second_registration_of_the_proxy_is_ignored(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + """
import jax
from jax.extend import backend
from jax._src import xla_bridge

def never():
    raise AssertionError("called")

backend.register_backend_factory("proxy", never, priority=-1)
had = snapshot()
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
backend.register_backend_factory("proxy", never, priority=-1)
xla_bridge.register_backend_factory("proxy", never)
backend.clear_backends()  # even so: the client is the same
assert len(jax.devices()) == 8
backend.register_backend_factory("another", never, priority=-100)
attachment.detach()
now = snapshot()
assert now["factories"].pop("another").factory is never
assert now["factories"] == had["factories"] and now["register"] == had["register"]
""",
        proxies[0].address,
    )


def test_arrays_and_programs_outlive_cleared_backends(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + """
import jax, jax.numpy as jnp
from jax.extend import backend

attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
double = jax.jit(lambda x: x * 2)
before = double(jnp.arange(4.0))
devices = jax.devices()
backend.clear_backends()
assert jax.devices() == devices and jax.default_backend() == "proxy"
assert before.tolist() == [0, 2, 4, 6]
assert double(before).tolist() == (before + before).tolist() == [0, 4, 8, 12]
assert double(jnp.ones(2)).devices() == before.devices()
attachment.detach()
assert jax.default_backend() == "cpu"
""",
        proxies[0].address,
    )


def test_a_forked_child_cannot_end_its_parents_connection(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + """
import jax.numpy as jnp
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
array = jnp.arange(3.0) + 1
child = os.fork()
if not child:
    attachment.detach()
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
assert array.tolist() == [1, 2, 3]
assert (array + 1).tolist() == [2, 3, 4]
""",
        proxies[0].address,
    )
