"""Batches of a dataset whose position is one number, independent of the slices.

Grain's `ElasticIterator` reads and batches: its state is the number of examples used since the
beginning. As one process feeds all slices, there is one such number, and after a change of the
batch size training continues at exactly the next example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, Self, get_args

import grain
from grain.experimental import ElasticIterator

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Batches", "LastBatch"]

LastBatch = Literal["partial", "drop"]

_POSITION: Final = "position"
_GRAINS: Final = "global_next_index"
#: Grain's own default reads 500 batches ahead, which each attempt would drop and read again.
_READ_AHEAD: Final = grain.ReadOptions(num_threads=8, prefetch_buffer_size=16)
_ALONE: Final = grain.sharding.ShardOptions(shard_index=0, shard_count=1)


class Batches(Iterator[Any]):
    """Batches of a dataset from any example on; each example of an epoch is used exactly once.

    A batch may hold the last examples of one epoch and the first of the next.

    Args:
      dataset: One epoch of single examples.
      batch_size: Examples per batch.
      epochs: The number of epochs; None: no limit.
      last_batch: The treatment of examples at the very end that do not fill a batch.
      may_vary: Whether another attempt may have another batch size.
      read_options: Grain's options for reading ahead; None: 16 batches, by 8 threads.

    Raises:
      InvalidRequestError: The dataset is empty, or there are or may be such examples, and
        `last_batch` is not set.
    """

    def __init__(
        self,
        dataset: grain.MapDataset[Any],
        batch_size: int,
        *,
        epochs: int | None = None,
        last_batch: LastBatch | None = None,
        may_vary: bool = False,
        read_options: grain.ReadOptions | None = None,
    ) -> None:
        self._epoch_size = len(dataset)
        if not self._epoch_size:
            raise InvalidRequestError("dataset", "empty", "at least one example")
        self._size = batch_size
        self._total = None if epochs is None else epochs * self._epoch_size
        self._last_batch = self._check_last(last_batch, may_vary)
        self._examples = dataset.repeat(epochs)
        self._read_options = read_options or _READ_AHEAD
        self._position = 0
        self._iterator: Any = None

    @property
    def position(self) -> int:
        """The number of examples used, over all epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next example, from 0."""
        return self._position // self._epoch_size

    def get_state(self) -> dict[str, Any]:
        """Returns the position: of the first example that was in no batch."""
        return {_POSITION: self._position}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a position of `get_state`; an empty state is the beginning."""
        self.close()
        self._position = int(state.get(_POSITION, 0))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        left = None if self._total is None else self._total - self._position
        if left is not None and left < self._size:
            return self._partial(left)
        if self._iterator is None:
            self._iterator = iter(
                ElasticIterator(self._examples, self._size, _ALONE, read_options=self._read_options)
            )
            self._iterator.set_state({_GRAINS: self._position})
        batch = next(self._iterator)
        self._position += self._size
        return batch

    def close(self) -> None:
        """Ends reading ahead; the position is kept."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def _partial(self, left: int) -> Any:
        self.close()
        if not left or self._last_batch == "drop":
            raise StopIteration
        [batch] = self._examples[self._position :].batch(left)
        self._position += left
        return batch

    def _check_last(self, last_batch: LastBatch | None, may_vary: bool) -> LastBatch | None:
        if last_batch is not None and last_batch not in get_args(LastBatch):
            raise InvalidRequestError("last_batch", last_batch, " or ".join(get_args(LastBatch)))
        if last_batch is None and self._total is not None:
            left = self._total % self._size
            if left or may_vary:
                which = f"{left} examples" if left else "examples, if fewer slices make batches,"
                raise InvalidRequestError(
                    "last_batch",
                    last_batch,
                    f"partial or drop: {which} at the end of {self._total} may fill no batch of "
                    f"{self._size}",
                )
        return last_batch
