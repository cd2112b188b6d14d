"""The program on two slices of two hosts each: it works, loses a slice, and goes on."""

from __future__ import annotations

from harness.deadlines import deadline

#: Runs after the prelude of `harness.programs`. Each line of standard input is an order, as JSON:
#: what to work at and the virtual slice that will be lost, or "leave".
CLIENT = (
    f"DEADLINE_S = {deadline(150.0)}\n"
    """
import hashlib, itertools, queue
placed, unplaced = queue.SimpleQueue(), queue.SimpleQueue()

def hear(event):
    if event.kind == "slice.placed":
        placed.put(event)
    elif event.kind == "slice.unplaced":
        unplaced.put(event)

with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 2}, on_event=hear) as connection:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    slices = [[d for d in jax.devices() if d.slice_index == index] for index in range(2)]
    both = slices[0] + slices[1]
    small = np.arange(64, dtype=np.float32).reshape(16, 4)
    large = np.arange(1 << 21, dtype=np.float32).reshape(16, -1)  # 8 MiB
    # Each device has a part, so the sum is a collective of all their hosts.
    total = jax.jit(lambda x: (x * x).sum())
    expected = float((small * small).sum())
    numbers = itertools.count(2)

    def sharding(devices):
        return NamedSharding(Mesh(np.array(devices), ("chip",)), P("chip"))

    def on(devices, x):
        return jax.device_put(x, sharding(devices))

    def digest(x):
        return hashlib.sha256(np.asarray(x).tobytes()).hexdigest()

    def error_of(x):
        try:
            return "" if np.asarray(x) is not None else ""
        except jax.errors.JaxRuntimeError as error:
            return str(error)

    def work_at(what, lost):
        other = slices[1 - lost]
        if what == "compute":
            x = on(both, small)
            return lambda: float(np.asarray(total(x)))
        if what == "compile":
            x = on(slices[lost], small)
            return lambda: np.asarray(jax.jit(lambda v: (v * next(numbers)).sum())(x))
        if what == "upload":
            return lambda: on(slices[lost], large).block_until_ready()
        assert what == "copy", what
        x = on(other, large)
        return lambda: jax.device_put(x, sharding(both)).block_until_ready()

    def until_right(devices):
        limit = time.monotonic() + DEADLINE_S
        while True:
            try:
                found = float(np.asarray(total(on(devices, small))))
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
                assert time.monotonic() < limit, error
                time.sleep(0.02)
            else:
                assert found == expected, (found, expected)
                return time.monotonic()

    def keep_on(work, is_working, is_over, failed):
        try:
            while not is_over.is_set():
                work()
                is_working.set()
        except BaseException as error:
            failed.append(f"{type(error).__name__}: {error}")
        is_working.set()

    for devices in (*slices, both):
        until_right(devices)
    say("connected")
    for line in sys.stdin:
        if line.strip() == "leave":
            break
        order = json.loads(line)
        lost = order["lost"]
        kept = on(slices[1 - lost], np.random.default_rng(next(numbers)).random((16, 1 << 14)))
        before = digest(kept)
        gone, spanning = on(slices[lost], small), on(both, small)
        for array in (gone, spanning):
            array.block_until_ready()
        while not placed.empty() or not unplaced.empty():
            (placed if not placed.empty() else unplaced).get()
        is_working, is_over, failed = threading.Event(), threading.Event(), []
        work = work_at(order["at"], lost)
        thread = threading.Thread(target=keep_on, args=(work, is_working, is_over, failed))
        thread.start()
        is_working.wait()
        say("working", failed=list(failed))
        left, came = unplaced.get(timeout=DEADLINE_S), placed.get(timeout=DEADLINE_S)
        first_step = until_right(slices[lost])
        is_over.set()
        thread.join(DEADLINE_S)
        spans = until_right(both)
        say("back", lost_at=left.monotonic, placed_at=came.monotonic, first_step_at=first_step,
            both_at=spans, index=came.data["virtual_index"], slice_id=came.data["slice_id"],
            reason=left.reason, failed=failed, is_stuck=thread.is_alive(),
            kept=digest(kept) == before, gone=error_of(gone), spanning=error_of(spanning))
"""
)
