"""Children of a program whose JAX is on a proxy: forked ones get an error, others connect anew."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.embedded import KIND, embedded, eventually, nothing_left
from harness.programs import program, python, sps

#: Runs in a forked child; `raises` wants the error that tells what to do.
USES = """
import faulthandler, os, sys, warnings
import jax, jax.numpy as jnp, numpy as np
warnings.simplefilter("ignore")

x = jnp.arange(8.0)
doubled = jax.jit(lambda a: a * 2)
called = []

@jax.jit
def calls_back(a):
    jax.debug.callback(called.append, a)
    return jax.pure_callback(lambda b: np.asarray(b) * 3, jax.ShapeDtypeStruct((8,), "float32"), a)

# A thread of XLA's compiler for this CPU remains where it has compiled.
here = jax.devices("cpu")[0]
local = jax.device_put(np.ones(2), here)
deleted = jax.device_put(np.ones(2), here)
deleted.delete()
with jax.default_device(here):
    local_ahead = jax.jit(lambda a: a + 1).lower(local).compile()
    sums = jax.jit(lambda a: (a @ a).sum())
    # Large enough for XLA to use its threads.
    assert sums(np.ones((512, 512), "float32")) == 512**3
    # (Takes a thread of XLA half a second.)
    powers = jax.jit(lambda a: jax.lax.fori_loop(0, 100, lambda _, b: b @ a, a))
    powers = powers.lower(np.eye(512, dtype="float32")).compile()

ahead = jax.jit(lambda a: a + 1).lower(x).compile()
before = [doubled(x).tolist(), calls_back(x).tolist(), ahead(x).tolist(), ahead(x).tolist()]
USES = {
    "a warm jit": lambda: doubled(x),
    "a compiled function": lambda: ahead(x),
    "a callback": lambda: calls_back(x),
    "an eager operation": lambda: x + 1,
    "a new program": lambda: jnp.zeros(3),
    "a value": lambda: np.asarray(x),
    "an item": lambda: float(x[0]),
    "device_put of numpy": lambda: jax.device_put(np.ones(3)),
    "device_put to another device": lambda: jax.device_put(x, jax.devices()[1]),
    "device_put to the CPU": lambda: jax.device_put(x, jax.devices("cpu")[0]),
    "waiting": lambda: jax.block_until_ready([x]),
    "deletion": lambda: x.delete(),
    "shards": lambda: x.addressable_shards,
    "putting together": lambda: jax.make_array_from_single_device_arrays((8,), x.sharding, [x]),
    "a program's text": lambda: ahead.as_text(),
    "memory": lambda: jax.devices()[0].memory_stats(),
    # Neither with this machine's CPU: a new thread of JAX may wait for ever.
    "a jit on the CPU": lambda: sums(local),
    "a compiled function on the CPU": lambda: local_ahead(local),
    "an eager operation on the CPU": lambda: local + 1,
    "a program on the CPU": lambda: on_cpu(lambda: jax.jit(lambda a: a + 2)(np.ones(2))),
    "device_put of numpy to the CPU": lambda: jax.device_put(np.ones(3), here),
    "an item on the CPU": lambda: float(local[0]),
    "copying": lambda: local.copy(),
    "what the parent has not computed yet": lambda: pending.tolist(),
    "waiting for it": lambda: pending.block_until_ready(),
}

def on_cpu(use):
    with jax.default_device(jax.devices("cpu")[0]):
        return use()

def in_child():
    faulthandler.dump_traceback_later(120, exit=True)
    threads = len(os.listdir("/proc/self/task"))
    for name, use in USES.items():
        try:
            use()
        except RuntimeError as error:
            assert "was forked from one whose JAX is on a proxy" in str(error), error
            assert "spawn" in str(error), error
        else:
            raise AssertionError(f"no error: {name}")
    assert "stablehlo.add" in jax.jit(lambda a: a + 3).lower(np.ones(2)).as_text()
    # No thread of JAX has been started: it may need a lock that a thread of the parent had.
    assert len(os.listdir("/proc/self/task")) == threads
    assert np.asarray(local).tolist() == local.tolist() == [1, 1]
    assert deleted.is_deleted() and not local.is_deleted()
    assert len(jax.devices()) == 4 and x.shape == (8,)
    # What goes must not be destroyed: that asks the proxy, too.
    for name in ("x", "doubled", "ahead", "calls_back", "local", "local_ahead", "pending", "USES"):
        del globals()[name]
    import gc
    gc.collect()

def child(end):
    global pending
    pending = powers(np.eye(512, dtype="float32"))
    while pending.is_ready():
        pending = powers(np.eye(512, dtype="float32"))
    pid = os.fork()
    if not pid:
        try:
            in_child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        end()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert pending[0, 0] == 1
    return code

assert child(lambda: os._exit(7)) == 7
assert child(lambda: sys.exit(8)) == 8  # with everything that Python does at its end
assert (local + 1).tolist() == [2, 2]
after = [doubled(x).tolist(), calls_back(x).tolist(), ahead(x).tolist(), ahead(x).tolist()]
assert before == after
jax.effects_barrier()
assert len(called) == 2, called
"""

IN_CONNECT = f"""
def main():
    source = {USES!r}
    with isc_pathways.connect(expected_tpu_instances={{"tpuv6e:2x2": 1}}):
        exec(source, globals())
        pid = os.fork()
        if not pid:
            try:
                isc_pathways.connect(expected_tpu_instances={{"tpuv6e:2x2": 1}}).start()
            except errors.InvalidRequestError as error:
                assert "was forked from one with a live connection" in str(error), error
                os._exit(9)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    say("done")
main()
"""

#: A child may connect where its parent was connected and nothing refers to the client any more.
AFTERWARDS = """
import faulthandler, warnings
import jax.numpy as jnp
warnings.simplefilter("ignore")

def total():
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
        return int(jnp.arange(4).sum())

def in_child():
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(120, exit=True)
        try:
            os._exit(total())
        except RuntimeError as error:
            assert "had JAX's client of a proxy" in str(error), error
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert total() == in_child() == 6
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
    kept = jnp.ones(3)
assert in_child() == 9
say("done")
"""

#: Workers of a pool have their parent's environment, and so its proxy, by each of the ways.
POOLS = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")

def total(n):
    import jax.numpy as jnp
    return int(jnp.arange(n).sum())

def devices(_):
    import jax
    return str(jax.devices())

def plain(n):
    return n + 1

if __name__ == "__main__":
    from shared_pathways_service import isc_pathways
    early = multiprocessing.get_context("spawn").Pool(1)
    [local] = early.map(devices, [0])
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
        assert early.map(devices, [0]) == [local] != [devices(0)]
        assert early.map(total, [5]) == [10]
        early.close()
        early.join()
        expected = total(5)
        for way in ("spawn", "forkserver"):
            with multiprocessing.get_context(way).Pool(1) as pool:
                assert pool.map(total, [5]) == [expected] == [10], way
                pool.close()
                pool.join()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(plain, range(4)) == [1, 2, 3, 4]
            try:
                pool.map(total, [5])
            except RuntimeError as error:
                assert "was forked from one whose JAX is on a proxy" in str(error), error
            else:
                raise AssertionError("a forked worker computed")
            pool.close()
            pool.join()
        assert total(5) == expected
        kept = multiprocessing.get_context("spawn").Pool(1)
        assert kept.map(total, [5]) == [10]
    # (joblib keeps its workers like this.)
    try:
        kept.map(total, [5])
    except Exception as error:
        assert "end the pool with the connection" in str(error.__notes__), error
    else:
        raise AssertionError("a worker outlived its connection")
    kept.close()
    kept.join()
    print("done")
"""


def test_a_forked_child_gets_an_error_and_its_parent_goes_on() -> None:
    with embedded(1):
        with program(IN_CONNECT) as running:
            running.expect("done")
            assert running.wait() == 0, running.stderr
        with program(AFTERWARDS) as running:
            running.expect("done")
            assert running.wait() == 0, running.stderr
        # By the environment alone, too.
        done = sps("run", f"--slices={KIND}=1", "--", sys.executable, "-c", USES, check=False)
        assert done.returncode == 0, done.stderr
        eventually(nothing_left, "all proxies to be gone")


def test_workers_of_pools(tmp_path: Path) -> None:
    script = tmp_path / "pools.py"
    script.write_text(POOLS)
    with embedded(1):
        done = python(script)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "done\n"
        eventually(nothing_left, "all proxies to be gone")
