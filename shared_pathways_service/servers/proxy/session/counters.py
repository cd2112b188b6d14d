"""The proxy's counters of work and resources.

Requests and host buffers are counted as they pass (`request_counts`); other values are determined
when a scraper asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import jaxlib.version

from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.servers.proxy.callbacks.callbacks import LATE_S
from shared_pathways_service.servers.proxy.engine.compile_cache import CacheCounts
from shared_pathways_service.servers.proxy.session.request_counts import RequestCounts, Transferred
from shared_pathways_service.version import __version__

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.engine.engine import Engine
    from shared_pathways_service.servers.proxy.execution.values import Value
    from shared_pathways_service.servers.proxy.session.session import Session

__all__ = ["families"]

_EXECUTE = "loaded_executable_execute_request"
_NS = 1e-9


def families(
    engine: Engine,
    sessions: Sequence[Session],
    requests: RequestCounts,
    *,
    sessions_opened: int,
    callbacks_ended: int,
    host_memory_bytes: int,
    received: Transferred,
    sent: Transferred,
) -> list[Family]:
    """Collects all counters; `callbacks_ended` is the number of callbacks of ended sessions."""
    live = [value for session in sessions for value in list(session.arrays.values())]
    live = [value for value in live if not value.deleted and value.error is None]
    programs = sum(len(session.programs) for session in sessions)
    executions = (count for kind, count in requests.items() if kind == _EXECUTE)
    dispatches = sum(count[0] - count[1] for count in executions)
    versions = {"version": __version__, "jaxlib_version": jaxlib.version.__version__}
    return [
        Family("sps_proxy", "info", "What runs.", [Sample(1, versions)]),
        *_of_requests(requests),
        _counter("dispatches", "Executions that were accepted.", dispatches),
        _counter("received_buffers", "Host buffers from clients.", received.buffers),
        _counter("received_bytes", "Bytes of host buffers from clients.", received.bytes, "bytes"),
        _counter("sent_buffers", "Host buffers to clients.", sent.buffers),
        _counter("sent_bytes", "Bytes of host buffers to clients.", sent.bytes, "bytes"),
        *_of_compilation(engine),
        *_of_callbacks(sessions, callbacks_ended),
        _counter("opened_sessions", "Sessions that were begun.", sessions_opened),
        *_of_sessions(sessions),
        _gauge("live_arrays", "Arrays that clients refer to.", len(live)),
        _gauge("live_programs", "Compiled programs that clients refer to.", programs),
        _gauge(
            "host_buffers",
            "Host buffers that came and wait to be used or fetched.",
            sum(len(session.buffers) for session in sessions),
        ),
        _gauge("host_memory_bytes", "What host buffers hold.", host_memory_bytes, "bytes"),
        *_of_device_memory(engine, live),
    ]


def _of_requests(requests: RequestCounts) -> list[Family]:
    counts = [({"kind": kind.removesuffix("_request")}, count) for kind, count in requests.items()]

    def by_kind(name: str, text: str, index: int, unit: str = "", scale: float = 1) -> Family:
        samples = [Sample(count[index] * scale, labels) for labels, count in counts]
        return Family(f"sps_proxy_{name}", "counter", text, samples, unit)

    return [
        by_kind("requests", "Requests.", 0),
        by_kind("refusals", "Requests answered with an error at once.", 1),
        by_kind("handler_seconds", "Time in the handlers of requests.", 2, "seconds", _NS),
        by_kind("request_bytes", "Bytes of requests.", 3, "bytes"),
        _counter("answer_bytes", "Bytes of answers.", requests.answer_bytes, "bytes"),
    ]


def _of_callbacks(sessions: Sequence[Session], ended: int) -> list[Family]:
    served = [session.callbacks for session in sessions if session.callbacks is not None]
    waits = [one for callbacks in served for one in callbacks.open]
    late: dict[tuple[str, str], float] = {}
    for one in waits:
        if one.seconds >= LATE_S:
            key = (one.program, one.function)
            late[key] = max(one.seconds, late.get(key, 0.0))
    total = ended + sum(callbacks.total for callbacks in served)
    return [
        _counter("callbacks", "Calls of clients' functions by programs.", total),
        _gauge("open_callbacks", "Calls that clients have not answered.", len(waits)),
        Family(
            "sps_proxy_late_callback_seconds",
            "gauge",
            f"How long programs wait for a callback that is out for more than {LATE_S:g} s.",
            [
                Sample(seconds, {"program": program, "function": function})
                for (program, function), seconds in sorted(late.items())
            ],
            "seconds",
        ),
    ]


def _of_compilation(engine: Engine) -> list[Family]:
    compiler = engine.compiler
    cache = CacheCounts() if compiler.cache is None else compiler.cache.counts
    seconds = compiler.compile_ns * _NS
    return [
        _counter("compilations", "Programs that XLA compiled.", compiler.compiled),
        _counter("compile_seconds", "Time in XLA's compiler.", seconds, "seconds"),
        _counter("compile_cache_hits", "Programs that were loaded instead.", cache.hits),
        _counter("compile_cache_misses", "Programs that were not in the cache.", cache.misses),
        _counter("compile_cache_rejected", "Entries that could not be used.", cache.rejected),
        _counter("compile_cache_stored", "Entries written.", cache.stored),
        _counter("compile_cache_evicted", "Entries removed to make room.", cache.evicted),
    ]


def _of_sessions(sessions: Sequence[Session]) -> list[Family]:
    return [
        _gauge("open_sessions", "Sessions that are open.", len(sessions)),
        _gauge(
            "held_back_sessions",
            "Sessions of which no request is read until their client reads answers.",
            sum(session.answers.held_back for session in sessions),
        ),
        _gauge(
            "unanswered_requests",
            "Requests that were read and whose answers were not yet taken.",
            sum(session.answers.open for session in sessions),
        ),
        _gauge(
            "open_handles",
            "Arrays, programs, executions and futures, also those that are errors.",
            sum(session.open_handles for session in sessions),
        ),
    ]


def _of_device_memory(engine: Engine, live: Iterable[Value]) -> list[Family]:
    return [
        Family(
            "sps_proxy_device_memory_bytes",
            "gauge",
            "What arrays hold of each device; with a limit, what is counted against it.",
            [
                Sample(held, {"device": str(device)})
                for device, held in enumerate(_device_memory(engine, live))
            ],
            "bytes",
        ),
        _gauge(
            "device_memory_limit_bytes",
            "What each device may hold; 0: no limit.",
            engine.memory.limit,
            "bytes",
        ),
    ]


def _device_memory(engine: Engine, live: Iterable[Value]) -> list[int]:
    if engine.memory.limit:
        return [engine.memory.held(device.id) for device in engine.devices]
    held = [0] * len(engine.devices)
    # Views share their array's memory.
    seen: set[tuple[int, int]] = set()
    for value in live:
        array, spec = value.array, value.spec
        if array is None or spec is None or value.client is None or value.failure() is not None:
            continue
        try:
            addresses = value.client.addresses(array)
            for device, address in zip(spec.placing.device_ids, addresses, strict=True):
                if (device, address) not in seen:
                    seen.add((device, address))
                    held[device] += spec.shard_bytes()
        except Exception:  # noqa: BLE001, S112 - XLA's own: deleted meanwhile
            continue
    return held


def _counter(name: str, text: str, value: float, unit: str = "") -> Family:
    return Family(f"sps_proxy_{name}", "counter", text, [Sample(value)], unit)


def _gauge(name: str, text: str, value: float, unit: str = "") -> Family:
    return Family(f"sps_proxy_{name}", "gauge", text, [Sample(value)], unit)
