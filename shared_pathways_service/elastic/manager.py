"""The public manager of elastic training, with the names of pathwaysutils.

Code for `pathwaysutils.elastic.manager` runs with a different import, see docs/elastic.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import jax

from shared_pathways_service.elastic.console import ConsoleLines
from shared_pathways_service.elastic.errors import ElasticRuntimeError, ScaleUpSignalError
from shared_pathways_service.elastic.health.probes import Probe, add_one_everywhere
from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.policy.options import Options, retrying
from shared_pathways_service.elastic.reconnect import starting_of
from shared_pathways_service.elastic.run_ledger import Ledger
from shared_pathways_service.elastic.run_states import make_states
from shared_pathways_service.elastic.sinks import Sinks, log_failure
from shared_pathways_service.elastic.slices import (
    SliceKey,
    group_by_slice,
    share_of,
    slice_index,
)
from shared_pathways_service.elastic.snapshots.client_memory import ClientMemory
from shared_pathways_service.elastic.snapshots.peer_memory import PeerMemory
from shared_pathways_service.elastic.snapshots.slots import SnapshotStore
from shared_pathways_service.elastic.training.attempt import Attempt
from shared_pathways_service.elastic.training.budget import (
    Callbacks,
    ElasticRetryLimit,
    RetryPolicy,
)
from shared_pathways_service.elastic.training.loop import Loop, Reconnect
from shared_pathways_service.elastic.training.profiling import refuse_profile, refusing_profiles
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event, manager_events, tenants, training

__all__ = ["ElasticRetryLimit", "ElasticRuntimeError", "Manager", "ScaleUpSignalError"]

T = TypeVar("T")
P = ParamSpec("P")


class Manager:
    """Runs training on slices that may be lost and return.

    Create one manager in the process that has JAX's devices; `run` may be called several times, one
    after the other.

    Args:
      devices: The devices of all slices; None: `jax.devices()`.
      options: The options; see `Options`.
      directory: The directory of ``ledger.jsonl`` and ``checkpoints/``. None: neither is written.
      checkpoint_directory: Another directory for checkpoints: a path, ``gs://…`` or ``s3://…``.
      slice_key: Returns the slice of a device.
      reconnect: Called when the proxy has ended; returns new devices, as many slices as before.
        `elastic.reconnect_with` makes one from a connection, which also knows the slices whose
        executors start. None: training ends then.
      probe: Checks that the devices of a slice compute; raises if not.
      on_event: Called with each `Event`, on any thread; its errors are only logged.
      console: Whether to print the lines that scripts expect.

    Raises:
      InvalidRequestError: An option is wrong, by itself or for this number of slices.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device] | None = None,
        *,
        options: Options | None = None,
        directory: str | os.PathLike[str] | None = None,
        checkpoint_directory: str | os.PathLike[str] | None = None,
        slice_key: SliceKey = slice_index,
        reconnect: Reconnect | None = None,
        probe: Probe = add_one_everywhere,
        on_event: Callable[[Event], object] | None = None,
        console: bool = True,
    ) -> None:
        self.options = options or Options()
        self._key = slice_key
        self._reconnect = reconnect
        self._probe = probe
        self._directory = None if directory is None else Path(directory)
        self._checkpoint_directory = checkpoint_directory
        self._on_event = on_event
        self._console = console
        self._sinks = Sinks()
        self._down_events = 0
        self._running = threading.Lock()
        self._active: frozenset[int] | None = None
        self._watch = self._make_watch(jax.devices() if devices is None else devices)
        self.options.slice_range(self.total_slice_count)

    def run(
        self,
        train: Callable[[Attempt], T],
        *,
        pre_callback: Callable[[], object] | None = None,
        on_elastic_event_callback: Callable[[], object] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> T:
        """Runs `train` until it returns, in this process, again after each slice event.

        Args:
          train: Gets an `Attempt`: the slices to train on, and the progress so far. It must not
            keep arrays after its end.
          pre_callback: Called before each attempt, when its slices are known.
          on_elastic_event_callback: Called after each event that ended an attempt.
          retry_policy: Called after each event, within the budgets: attempt (from 1) and error.

        Returns:
          The result of `train`.

        Raises:
          ElasticRuntimeError: A budget is exhausted, or the slices did not come back in time.
          InvalidRequestError: A profile is active, or another run of this manager is; JAX raises
            it, too, if `train` begins a profile.
          Exception: An error of `train` that was not caused by a slice.
        """
        callbacks = Callbacks(before=pre_callback, after=on_elastic_event_callback)
        return self._run(train, self.options, callbacks, retry_policy)

    def elastic_retry(  # noqa: PLR0917 - pathwaysutils', in its order
        self,
        max_retries: int | None = None,
        minimum_slice_count: int | None = None,
        poll_interval: float = 10,
        timeout: float | None = None,
        pre_callback: Callable[..., Any] | None = None,
        on_elastic_event_callback: Callable[..., Any] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Returns a decorator: the function is called again after each slice event.

        Like pathwaysutils' decorator of this name. The function gets its own arguments, and manages
        its own state. To interrupt itself for `available_inactive_slices`, it raises
        `ScaleUpSignalError`.

        Args:
          max_retries: The number of attempts; None: no limit.
          minimum_slice_count: The number of slices to wait for; None: all.
          poll_interval: Seconds between two checks for missing slices.
          timeout: Seconds to wait for slices; None: no limit.
          pre_callback: Called before each attempt.
          on_elastic_event_callback: Called after each event that ended an attempt.
          retry_policy: Instead of `max_retries`.

        Raises:
          InvalidRequestError: Both `max_retries` and `retry_policy`, or a number out of range.
        """
        if max_retries is not None and retry_policy is not None:
            raise InvalidRequestError("max_retries", max_retries, "either it or retry_policy")
        options = retrying(self.options, max_retries, minimum_slice_count, poll_interval, timeout)
        policy = ElasticRetryLimit(max_retries) if max_retries is not None else retry_policy
        callbacks = Callbacks(before=pre_callback, after=on_elastic_event_callback)

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            @functools.wraps(function)
            def again(*args: P.args, **kwargs: P.kwargs) -> T:
                return self._run(lambda _: function(*args, **kwargs), options, callbacks, policy)

            return again

        return decorate

    def pause_resume(
        self, max_retries: int, **others: Any
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """`elastic_retry` with all slices; an older name in pathwaysutils."""
        return self.elastic_retry(max_retries=max_retries, minimum_slice_count=None, **others)

    def replica_resize(
        self, max_resizes: int, **others: Any
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """`elastic_retry` with at least one slice; an older name in pathwaysutils."""
        return self.elastic_retry(max_retries=max_resizes, minimum_slice_count=1, **others)

    def hear(self, event: Event) -> None:
        """Accepts an event of a connection, so that returned slices are noticed at once.

        ``connect(on_event=…)`` needs a function before the manager exists: pass one that forwards
        to ``manager.hear`` once it does.
        """
        if isinstance(event, tenants.SlicePlaced | manager_events.PhysicalSliceLost):
            self._watch.wake()

    @property
    def slice_to_devices(self) -> Mapping[int, Sequence[jax.Device]]:
        """The devices of each slice."""
        return self._watch.devices

    @property
    def all_slice_indices(self) -> AbstractSet[int]:
        """All slices."""
        return frozenset(self._watch.devices)

    @property
    def total_slice_count(self) -> int:
        """The number of all slices."""
        return len(self._watch.devices)

    @property
    def active_slice_indices(self) -> frozenset[int]:
        """The slices of training; before the first attempt, those that answer."""
        if self._active is None:
            self._active = frozenset(self._watch.ask().good)
        return self._active

    @active_slice_indices.setter
    def active_slice_indices(self, value: AbstractSet[int]) -> None:
        self._active = frozenset(value)

    @property
    def inactive_slice_indices(self) -> AbstractSet[int]:
        """The slices that are not used by training."""
        return self.all_slice_indices - self.active_slice_indices

    @property
    def available_inactive_slices(self) -> AbstractSet[int]:
        """Those of them that answer: a reason to raise `ScaleUpSignalError`."""
        return frozenset(self._watch.usable()) - self.active_slice_indices

    @property
    def active_slice_count(self) -> int:
        """The number of slices of training."""
        return len(self.active_slice_indices)

    good_slice_count = active_slice_count

    @property
    def elastic_down_event_count(self) -> int:
        """The number of attempts that a slice has ended so far."""
        return self._down_events

    @property
    def default_device(self) -> jax.Device:
        """A device of a slice of training.

        Raises:
          ValueError: There is none.
        """
        if not self.active_slice_indices:
            raise ValueError("No active slices")
        return self._watch.devices[min(self.active_slice_indices)][0]

    def scale_by_active_slices(self, x: float) -> int | float:
        """Returns the share of `x` for the slices of training.

        Args:
          x: A number for all slices; the share of a whole number must be whole.

        Raises:
          ValueError: The share is not whole.
        """
        return share_of(x, self.active_slice_count, self.total_slice_count)

    def start_monitoring(self, poll_interval: float = 10) -> None:
        """Probes missing slices periodically, also outside of a run, until `close`."""
        self._watch.start_monitor(poll_interval)

    def close(self) -> None:
        """Ends all threads. They restart when they are needed."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _make_watch(self, devices: Sequence[jax.Device]) -> SliceWatch:
        slices = group_by_slice(devices, self._key)
        starting = starting_of(self._reconnect, slices)
        return SliceWatch(slices, self.options, self._probe, self._sinks, starting)

    def _run(
        self,
        train: Callable[[Attempt], T],
        options: Options,
        callbacks: Callbacks,
        retry_policy: RetryPolicy | None,
    ) -> T:
        refuse_profile()
        options.slice_range(self.total_slice_count)
        if not self._running.acquire(blocking=False):
            raise InvalidRequestError("run", train, "one run of a manager at a time")
        with contextlib.ExitStack() as stack:
            stack.callback(self._running.release)
            stack.enter_context(refusing_profiles())
            for sink in self._make_sinks(stack):
                stack.enter_context(self._sinks.attached(sink))
            states = make_states(
                options,
                stack,
                directory=self._directory,
                checkpoint_directory=self._checkpoint_directory,
                make_store=functools.partial(self._make_store, options),
                emit=self._sinks,
            )
            loop: Loop[T] = Loop(
                self._watch,
                states,
                options,
                self._sinks,
                reconnect=None if self._reconnect is None else self._connect_anew,
                retry_policy=retry_policy,
                callbacks=callbacks,
                begun=self._begin,
                down_events=lambda: self._down_events,
            )
            stack.callback(self.close)  # the watch at that time
            return loop.run(train)

    def _make_sinks(self, stack: contextlib.ExitStack) -> list[Callable[[Event], object]]:
        sinks: list[Callable[[Event], object]] = [self._count, log_failure]
        if self._directory is not None:
            sinks.append(stack.enter_context(Ledger(self._directory)))
        if self._console:
            sinks.append(ConsoleLines())
        if self._on_event is not None:
            sinks.append(self._on_event)
        return sinks

    def _make_store(self, options: Options) -> SnapshotStore:
        if options.snapshot_to == "client":
            return ClientMemory()
        on = {index: self._watch.devices[index] for index in sorted(self.active_slice_indices)}
        return PeerMemory(on, self._key)

    def _connect_anew(self) -> SliceWatch:
        assert self._reconnect is not None
        self._watch = self._make_watch(self._reconnect())
        return self._watch

    def _begin(self, slices: tuple[int, ...]) -> None:
        self._active = frozenset(slices)

    def _count(self, event: Event) -> None:
        if isinstance(event, training.AttemptFailed):
            self._down_events += event.retries
