"""Arrays through a proxy and back: made, put, computed with, split, fetched and summed up."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["exercise"]

_WORD = 4


@dataclasses.dataclass(frozen=True)
class _Record:
    """The duration of each step, and the results of steps that return data."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    checksums: dict[str, int] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def timed(self, name: str, function: Callable[[], Any]) -> Any:
        import jax

        begin = time.monotonic()
        result = jax.block_until_ready(function())
        self.seconds[name] = round(time.monotonic() - begin, 2)
        return result

    def compare(self, name: str, found: int, expected: int) -> None:
        self.checksums[name] = found
        if found != expected:
            self.wrong.append(name)


def exercise(nbytes: int, devices: Sequence[Any]) -> dict[str, Any]:
    """Does everything once, on one device and split over all; returns what happened.

    Args:
      nbytes: Of each array; rounded down to what all devices can share.
      devices: Of JAX.
    """
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    size = nbytes - nbytes % (_WORD * len(devices))
    record = _Record()
    split = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    _take_through(size, {"one": devices[-1], "split": split}, record)
    _make(size, record)
    return {"bytes": size, **dataclasses.asdict(record)}


def _take_through(size: int, places: Mapping[str, Any], record: _Record) -> None:
    """Sends an array to each place, computes with it there and brings it back."""
    import jax
    import numpy as np

    # 251 is prime: no piece is like another.
    values = np.resize(np.arange(251, dtype=np.uint8), size)
    sent, summed = zlib.crc32(values.data), _sum(values.view(np.uint32))
    stepped = zlib.crc32((values * np.uint8(3) + np.uint8(1)).data)
    step = jax.jit(lambda x: x * 3 + 1, donate_argnums=0)
    total = jax.jit(_sum_of_words)

    def take_to(name: str, place: Any) -> None:
        array = record.timed(f"put, {name}", lambda: jax.device_put(values, place))
        fetched = record.timed(f"fetch, {name}", lambda: np.asarray(array))
        record.compare(f"put, {name}", zlib.crc32(fetched.data), sent)
        found = record.timed(f"sum, {name}", lambda: total(array))
        record.compare(f"sum, {name}", int(found), summed)
        # JAX stores fetched data in the array: both are released here.
        made = record.timed(f"compute, {name}", lambda: step(array))
        record.compare(f"compute, {name}", zlib.crc32(np.asarray(made).data), stepped)

    for name, place in places.items():
        take_to(name, place)


def _make(size: int, record: _Record) -> None:
    """Makes an array where there was none."""
    import jax
    import jax.numpy as jnp

    made = record.timed("make", jax.jit(lambda: jnp.full(size, 7, jnp.uint8)))
    found = jax.jit(_sum_of_words)(made)
    record.compare("make", int(found), 0x07070707 * (size // _WORD) % (1 << 32))


def _sum_of_words(array: Any) -> Any:
    """Sums bytes up in words of four, which takes no memory for wider elements."""
    import jax
    import jax.numpy as jnp

    words = jax.lax.bitcast_convert_type(array.reshape(-1, _WORD), jnp.uint32)
    return words.sum(dtype=jnp.uint32)


def _sum(words: Any) -> int:
    total: int = int(words.sum(dtype="uint64")) % (1 << 32)
    return total
