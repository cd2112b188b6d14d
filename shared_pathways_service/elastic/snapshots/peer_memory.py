"""Stores snapshots in the memory of the slices: each piece of a state on two of them.

A piece that training has on several slices anyway, such as replicated parameters, costs a copy
within each device. A piece that only one slice has is copied to a second one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np

from shared_pathways_service.elastic.slices import SliceKey
from shared_pathways_service.elastic.snapshots.client_memory import ClientMemory, HostArray
from shared_pathways_service.elastic.trees import Tree, put
from shared_pathways_service.elastic.waiting import Waiters
from shared_pathways_service.patience import timeouts

__all__ = ["PeerMemory"]

#: The number of slices that store a piece.
_PLACES: Final = 2

_Index = tuple[tuple[int | None, int | None, int | None], ...]


class PeerMemory:
    """Stores states on the slices themselves, at least two; survives the loss of one."""

    place: Final = "peer"

    def __init__(self, devices: Mapping[int, Sequence[jax.Device]], key: SliceKey) -> None:
        if len(devices) < _PLACES:
            raise ValueError(f"a second slice is needed, and there is only slice {set(devices)}")
        self._devices = devices
        self._key = key

    def keep(self, copies: Tree) -> _OnSlices:
        """Copies each piece to a second slice, and reads every copy on its device."""
        leaves, structure = jax.tree.flatten(copies)
        kept = [self._keep_one(leaf) for leaf in leaves]
        for pieces in kept:
            pieces.begin_to_verify()
        for pieces in kept:
            pieces.verify()
        return _OnSlices(
            arrays=jax.tree.unflatten(structure, kept), nbytes=sum(pieces.nbytes for pieces in kept)
        )

    def _keep_one(self, leaf: Any) -> _Pieces:
        if not isinstance(leaf, jax.Array):
            return _Pieces(shape=leaf.shape, copies={}, local=leaf)
        places: dict[_Index, dict[int, jax.Array]] = {}
        for shard in leaf.addressable_shards:
            bounds = tuple((part.start, part.stop, part.step) for part in shard.index)
            found = places.setdefault(bounds, {})
            # One per slice: further replicas within a slice would not protect against its loss.
            found.setdefault(self._key(shard.device), shard.data)
        for found in places.values():
            # The next slice first, from the first one that has the piece.
            for index in sorted(self._devices, key=lambda i: (i <= min(found), i)):
                if len(found) >= _PLACES:
                    break
                if index not in found:
                    found[index] = put(next(iter(found.values())), self._twin(found, index))
        return _Pieces(
            shape=leaf.shape,
            copies={
                index: tuple(
                    _Copy(slice=number, array=array, sum=_bits_sum(array))
                    for number, array in list(found.items())[:_PLACES]
                )
                for index, found in places.items()
            },
        )

    def _twin(self, found: Mapping[int, jax.Array], slice_index: int) -> jax.Device:
        """Returns the device of another slice at the position of a piece's device."""
        home, array = next(iter(found.items()))
        number = list(self._devices[home]).index(next(iter(array.devices())))
        there = self._devices[slice_index]
        return there[number % len(there)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Copy:
    """A piece on one device of a slice, with the sum of its bits on that device."""

    slice: int
    array: jax.Array
    sum: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pieces:
    """An array in pieces."""

    shape: tuple[int, ...]
    copies: Mapping[_Index, Sequence[_Copy]]
    local: Any = None

    @property
    def nbytes(self) -> int:
        return sum(copy.array.nbytes for copies in self.copies.values() for copy in copies)

    def begin_to_verify(self) -> None:
        for copies in self.copies.values():
            for copy in copies:
                copy.sum.copy_to_host_async()

    def verify(self) -> None:
        """Raises if a copy cannot be read, or two copies of a piece differ."""
        for copies in self.copies.values():
            sums = {int(copy.sum) for copy in copies}
            if len(sums) > 1:
                raise ValueError(f"the copies of a piece of {self.shape} differ")

    def put(self, like: jax.ShapeDtypeStruct, reader: _Reader) -> jax.Array:
        if self.local is not None:
            return put(self.local, like.sharding)
        if len(self.copies) == 1:
            [copies] = self.copies.values()
            return put(reader.find(copies, like.sharding.device_set), like.sharding)
        # Its pieces are cut differently: put it together here.
        return self.fetch(reader, like.sharding.device_set).put(like.sharding)

    def fetch(self, reader: _Reader, near: AbstractSet[jax.Device] = frozenset()) -> HostArray:
        """Returns it in this process's memory."""
        if self.local is not None:
            return HostArray(data=np.asarray(self.local))
        pieces: dict[_Index, HostArray] = {
            index: ClientMemory().keep(reader.find(copies, near)).arrays
            for index, copies in self.copies.items()
        }
        first = next(iter(pieces.values()))
        inner = first.data.shape[len(self.shape) :]  # the bits of PRNG keys
        whole = np.empty((*self.shape, *inner), first.data.dtype)
        for index, piece in pieces.items():
            whole[tuple(slice(*bounds) for bounds in index)] = piece.data
        return dataclasses.replace(first, data=whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OnSlices:
    arrays: Tree
    nbytes: int

    @property
    def on_devices(self) -> bool:
        return True

    def restore(self, like: Tree) -> Tree:
        with _Reader() as reader:
            return jax.tree.map(lambda pieces, leaf: pieces.put(leaf, reader), self.arrays, like)

    def fetch(self) -> Tree:
        with _Reader() as reader:
            return jax.tree.map(lambda pieces: pieces.fetch(reader).data, self.arrays)


class _Reader:
    """Finds readable copies. A slice that does not answer is tried once."""

    def __init__(self) -> None:
        self._waiters = Waiters("sps-elastic-peer")
        self._silent: set[int] = set()

    def find(self, copies: Sequence[_Copy], near: AbstractSet[jax.Device]) -> jax.Array:
        """Returns a copy that its device can still read, unchanged; raises LookupError.

        Devices that are `near` are tried first, because they are known to answer.
        """
        wrong = ""
        for copy in sorted(copies, key=lambda copy: not copy.array.devices() <= near):
            if copy.slice in self._silent:
                continue
            outcome = self._waiters.call(copy.slice, functools.partial(_is_unchanged, copy))
            if not outcome.wait(timeouts.PEER_READ.s):
                self._silent.add(copy.slice)
                wrong = f"slice {copy.slice} does not answer"
            elif isinstance(outcome.error, jax.errors.JaxRuntimeError):
                wrong = str(outcome.error).split("\n", 1)[0]
            elif outcome.result():
                return copy.array
            else:
                wrong = "its bits have changed"
        raise LookupError(f"no copy of a piece is left: {wrong}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._waiters.close()


def _is_unchanged(copy: _Copy) -> bool:
    return int(_bits_sum(copy.array)) == int(copy.sum)


@jax.jit
def _bits_sum(array: jax.Array) -> jax.Array:
    """Returns the sum of an array's bits, modulo 2^32."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag])
    words = _words(array)
    if words.dtype == jnp.uint64:
        words = words ^ (words >> 32)
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)


def _words(array: jax.Array) -> jax.Array:
    """Returns an array's bits as integers."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    whole = jnp.issubdtype(array.dtype, jnp.integer)
    bits = (jnp.iinfo if whole else jnp.finfo)(array.dtype).bits
    if bits < 8:
        # Types smaller than a byte: by their values, each of which has one form.
        array, bits = (array.astype(jnp.int8), 8) if whole else (array.astype(jnp.float32), 32)
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}"))
