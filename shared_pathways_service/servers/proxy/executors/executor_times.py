"""The times of programs on a proxy's executors: entered by runs, reported to the resource manager.

`run_comparison` compares them, and `slow_events` chooses what is reported as an event.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.events.proxy import ExecutorSlow, ExecutorSlowEnded, ProxyReport
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.run_comparison import (
    Change,
    ExecutorId,
    Program,
    RunComparison,
    SlowLimits,
)
from shared_pathways_service.servers.proxy.executors.slow_events import SlowEvents

__all__ = ["ExecutorTimes", "digest_of"]

#: The programs of an executor in a report, and those of all executors together.
_PROGRAMS_OF_ONE, _PROGRAMS_OF_ALL = 8, 2048
#: The most characters of a program's name: a resource manager cuts longer ones.
_LONGEST_NAME = 100
#: The maximum number of runs that wait for their comparison; further ones are not compared.
_MOST_WAITING = 1000


def digest_of(body: executors_pb2.CompileProgram) -> bytes:
    """Returns a digest of a program's text and options, without the devices of these."""
    options = xla_pb2.CompileOptionsProto.FromString(body.options)
    options.executable_build_options.ClearField("device_assignment")
    options.executable_build_options.ClearField("device_ordinal")
    digest = hashlib.sha256(options.SerializeToString(deterministic=True))
    digest.update(body.text)
    return digest.digest()[:16]


class ExecutorTimes:
    """Enters runs of programs, and reports verdicts. Thread-safe.

    A thread of its own compares the runs in their order and reports the verdicts, so that neither
    programs nor the reports of executors wait for it.

    Args:
      limits: When an executor counts as slow.
      clock: Monotonic seconds.

    Attributes:
      on_change: Called on that thread with each event, in the order of the verdicts.
    """

    def __init__(self, limits: SlowLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[ProxyReport], object] = lambda _event: None
        self._comparison = RunComparison(limits)
        self._events = SlowEvents()
        self._clock = clock
        #: Held to compare a run, and to read the comparison for a report.
        self._lock = threading.Lock()
        #: Each executor, with the type of its slice.
        self._executors: dict[ExecutorLink, tuple[ExecutorId, str]] = {}
        self._waiting: queue.SimpleQueue[Callable[[float], list[Change]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, link: ExecutorLink, executor: ExecutorId, instance_type: str) -> None:
        """Enters an executor, whose runs count from now on."""
        with self._lock:
            self._executors[link] = (executor, instance_type)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._compare, name="executor-times", daemon=True
                )
                self._thread.start()

    def remove(self, links: Iterable[ExecutorLink]) -> None:
        """Forgets executors that have ended, and their runs."""
        ended = list(links)
        self._waiting.put(lambda _now: self._remove(ended))

    def close(self) -> None:
        """Compares the runs that wait, and ends the thread."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(timeouts.PLACEMENT_THREADS_END.s)

    def ran(
        self,
        name: str,
        digest: bytes,
        devices: Mapping[ExecutorLink, int],
        times_ns: Sequence[int],
    ) -> None:
        """Enters one run of a program; does not wait for its comparison.

        Args:
          name: The program's name.
          digest: Its `digest_of`.
          devices: The number of its devices on each executor that ran it.
          times_ns: The nanoseconds on each; 0: not known.
        """
        # (An executor without peers has nothing to compare.)
        if len(self._executors) > 1 and self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(lambda now: self._ran(name, digest, devices, times_ns, now))

    def message(self) -> pb.ExecutorTimes:
        """Returns the report for the resource manager; ends verdicts that are too old."""
        # (They are in the next report, which the end of a verdict causes.)
        self._waiting.put(self._comparison.expire)
        with self._lock:
            most = _PROGRAMS_OF_ALL // max(1, len(self._executors))
            facts = self._comparison.facts(max(1, min(_PROGRAMS_OF_ONE, most)), self._clock())
        message = pb.ExecutorTimes()
        indices: dict[str, int] = {}
        for one in facts:
            message.executors.add(
                generation=one.executor.generation,
                host_index=one.executor.host_index,
                is_slow=one.is_slow,
                ratio=one.ratio,
                programs=[
                    pb.ProgramTime(
                        program=indices.setdefault(program.name, len(indices)),
                        calls=program.calls,
                        median_s=program.median_s,
                        p90_s=program.p90_s,
                        ratio=program.ratio,
                        is_slow=program.is_slow,
                    )
                    for program in one.programs
                ],
            )
        message.programs.extend(indices)
        return message

    # ---- on the thread

    def _compare(self) -> None:
        while (step := self._waiting.get()) is not None:
            try:
                with self._lock:
                    now = self._clock()
                    changes = self._events.admit(step(now), now)
                for change in changes:
                    self.on_change(_event_of(change))
            except Exception as error:  # noqa: BLE001 - the next runs are compared all the same
                glog("E", f"The times of a program on executors are dropped: {error!r}")

    def _remove(self, links: Iterable[ExecutorLink]) -> list[Change]:
        ended = [self._executors.pop(one)[0] for one in links if one in self._executors]
        return self._comparison.forget(ended)

    def _ran(
        self,
        name: str,
        digest: bytes,
        devices: Mapping[ExecutorLink, int],
        times_ns: Sequence[int],
        now: float,
    ) -> list[Change]:
        runs: dict[Program, dict[ExecutorId, float]] = {}
        for (link, count), time_ns in zip(devices.items(), times_ns, strict=True):
            found = self._executors.get(link)
            # (Executors of older releases report no times.)
            if found is not None and time_ns:
                program = Program(fitting_text(name[:_LONGEST_NAME]), digest, found[1], count)
                runs.setdefault(program, {})[found[0]] = time_ns / 1e9
        return [
            change
            for program, times in runs.items()
            for change in self._comparison.ran(program, times, now)
        ]


def _event_of(change: Change) -> ProxyReport:
    executor = change.executor
    # (`slice_id` too: a client gets events with its virtual slice as `slice`.)
    where = f"host {executor.host_index} of {executor.slice_id}"
    fields: dict[str, Any] = {
        "reason": fitting_text(f"{where}: {change.reason}"),
        "slice": executor.slice_id,
        "virtual_index": executor.virtual_index,
        "slice_id": executor.slice_id,
        "generation": executor.generation,
        "host": executor.host_index,
    }
    if not change.is_slow:
        return ExecutorSlowEnded(**fields)
    return ExecutorSlow(**fields, program=change.program, ratio=change.ratio)
