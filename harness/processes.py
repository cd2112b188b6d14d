"""Real servers as processes of a test: started, watched, stopped or killed, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import psutil

from harness.carriers import hello
from harness.deadlines import deadline
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.runtime.processes import Identity, identity_of

#: Generous, for a loaded machine of two cores: tests assert results, never speed.
DEADLINE_S = deadline(60.0)
#: For the start of a server, which imports JAX: a minute was not enough at a load of 50.
START_S = deadline(180.0)
REPOSITORY = Path(__file__).parents[1]
KIND = "tpuv6e:2x2"
T = TypeVar("T")
VERSIONS = pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine; gRPC's poller thread ends with the last of its objects, at once."""
    try:
        return asyncio.run(work)
    finally:
        gc.collect()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie has ended, although its parent may never reap it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def ended_process() -> Identity:
    """Returns a process of this machine that has ended."""
    here = identity_of()
    boot, _, ticks = here.start.partition("/")
    return dataclasses.replace(here, start=f"{boot}/{int(ticks) - 1}")


def is_gone(pid: int) -> bool:
    """Whether no process with this number runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not is_alive(psutil.Process(pid))
    return True


class ServerProcess:
    """One ``python -m MODULE`` whose log is recorded; use as a context manager.

    A server without the flag ``--ready_fd`` does not report when it is ready, and is not awaited.
    """

    def __init__(
        self,
        module: str,
        flags: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        tells_ready: bool = True,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
    ) -> None:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb") as ready, os.fdopen(write_fd, "wb") as told:
            self._process = subprocess.Popen(
                [
                    *(*prefix, python, "-m", module, *flags),
                    *([f"--ready_fd={told.fileno()}"] if tells_ready else []),
                ],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                # XLA writes its input unchanged. A log that is not read blocks its writer.
                errors="backslashreplace",
                pass_fds=(told.fileno(),),
                cwd=REPOSITORY,
                env={**os.environ, **(env or {})},
            )
            told.close()
            self.pid = self._process.pid
            self.lines: list[str] = []
            self._news = threading.Condition()
            self._ended = False
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
            #: The report on `--ready_fd`; None if the process ended before.
            self.ready: dict[str, Any] | None = None
            if not tells_ready:
                return
            if select.select([ready], [], [], START_S)[0]:
                if line := ready.readline():
                    self.ready = json.loads(line)
                else:
                    # (Its log says why it ended.)
                    self._reader.join(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_line(self, pattern: str, *, times: int = 1, within_s: float = DEADLINE_S) -> str:
        """Waits until a line of the log matches, `times` times in all; returns the last match."""

        def matching() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        with self._news:
            self._news.wait_for(lambda: len(matching()) >= times or self._ended, within_s)
            found = matching()
            assert len(found) >= times, f"no {pattern!r} in the log:\n" + "\n".join(self.lines)
            return found[times - 1]

    def signal(self, sig: signal.Signals) -> None:
        self._process.send_signal(sig)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Waits for the end; returns the exit code, negative for a signal."""
        code = self._process.wait(timeout_s)
        self._reader.join(DEADLINE_S)
        return code

    def kill(self) -> None:
        """Kills it, as `kill -9` does, and waits for its end."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        assert self._process.stderr
        self._process.stderr.close()

    def stop(self) -> int:
        """Asks it to end, and returns its exit code."""
        self._process.terminate()
        return self.wait()


class Stream:
    """A stream of the client's, read into a queue by a thread; use as a context manager."""

    def __init__(self, method: Any, request: Any = None, *, token: str | None = None) -> None:
        """Opens the call: with `request` if the method takes one, otherwise with later messages."""
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sent = iter(self._out.get, None) if request is None else request
        self.call = method(sent, metadata=bearer(token))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            for message in self.call:
                self._in.put(message)
        except grpc.RpcError:
            pass
        self._in.put(None)

    def send(self, message: Any) -> None:
        self._out.put(message)

    def next(self) -> Any:
        """Returns the next message; None at the end."""
        return self._in.get(timeout=DEADLINE_S)

    def expect(self, field: str) -> Any:
        """Waits for a message with this field set, passing over others."""
        seen = []
        while (message := self.next()) is not None:
            if message.HasField(field):
                return getattr(message, field)
            seen.append(message)
        raise AssertionError(f"the stream ended before {field}: {self.status()}; saw {seen}")

    def status(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end of the call; returns how it ended."""
        return self.call.code(), self.call.details()

    def close(self) -> None:
        """Ends the call from this side, as a process that dies does."""
        self.call.cancel()
        self._out.put(None)
        self._reader.join()


class Service:
    """A resource manager and workers on Unix sockets of one directory; all end with it."""

    def __init__(self, root: Path, *flags: str, slices: str = KIND, count: str = "2") -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.socket = root / "rm"
        self.address = f"unix:{self.socket}"
        self.token: str | None = None
        self._stack = contextlib.ExitStack()
        self._flags = [
            f"--server_socket={self.socket}",
            f"--instance_type={slices}",
            f"--instance_count={count}",
            f"--state_file={root / 'state'}",
            *flags,
        ]
        self.rm = self.start_rm("--first_start")
        options = (("grpc.max_reconnect_backoff_ms", 200),)
        self.channel = self._stack.enter_context(grpc.insecure_channel(self.address, options))
        self.stub = pb_grpc.ResourceManagerStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def start_rm(self, *flags: str) -> ServerProcess:
        """Starts the resource manager, again after it ended."""
        module = "shared_pathways_service.servers.resource_manager"
        # (Also of one that does not start.)
        self.rm = self._stack.enter_context(ServerProcess(module, [*self._flags, *flags]))
        assert self.rm.ready is not None, "\n".join(self.rm.lines)
        return self.rm

    def start_worker(self, slice_id: str, *flags: str, kind: str = KIND) -> ServerProcess:
        """Starts a worker; one more of the same name only after the other has ended."""
        return self._stack.enter_context(
            ServerProcess(
                "shared_pathways_service.servers.worker",
                [
                    f"--server_socket={self.root / f'w-{slice_id}'}",
                    f"--resource_manager_address={self.address}",
                    f"--slice_id={slice_id}",
                    f"--instance_type={kind}",
                    *flags,
                ],
            )
        )

    def metrics_url(self) -> str:
        """Returns where the resource manager, with `--metrics_port=0`, serves its metrics."""
        line = self.rm.wait_for_line(r"Metrics at http://127\.0\.0\.1:\d+/metrics")
        return line.rpartition(" ")[2]

    def start_ready_workers(self, *slice_ids: str) -> list[ServerProcess]:
        """Starts the workers of some slices and waits until the slices are ready."""
        workers = [self.start_worker(slice_id) for slice_id in slice_ids]
        self.wait_for_states(dict.fromkeys(slice_ids, "ready"))
        return workers

    def tenant(self, name: str, /, **fields: Any) -> Stream:
        """Opens a tenant's stream and says hello; one slice is asked for unless said otherwise."""
        stream = self.stream(self.stub.TenantSession)
        stream.send(pb.TenantMessage(hello=tenant_hello(name, **fields)))
        return stream

    def watch(self, tenant: str = "") -> Stream:
        """Watches the events; returns once the resource manager has accepted or refused that."""
        watch = self.stream(self.stub.Watch, pb.WatchRequest(versions=VERSIONS, tenant=tenant))
        watch.call.initial_metadata()
        return watch

    def stream(self, method: Any, request: Any = None) -> Stream:
        """Opens a stream that ends with the service."""
        return self._stack.enter_context(Stream(method, request, token=self.token))

    def status(self) -> pb.GetStatusResponse:
        response: pb.GetStatusResponse = self.stub.GetStatus(
            pb.GetStatusRequest(),
            metadata=bearer(self.token),
            wait_for_ready=True,
            timeout=DEADLINE_S,
        )
        return response

    def wait_for_states(self, states: dict[str, str]) -> pb.GetStatusResponse:
        """Waits until the slices are in these states."""
        for status in self.statuses():
            now = {entry.id: entry.state for entry in status.slices}
            if all(now.get(slice_id) == state for slice_id, state in states.items()):
                return status
        raise AssertionError(f"wanted {states}, have {now}")

    def statuses(self) -> Iterator[pb.GetStatusResponse]:
        """Asks for the status again and again, until the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            yield self.status()
            time.sleep(0.02)


def tenant_hello(name: str, /, **fields: Any) -> pb.TenantHello:
    """Returns the hello of a tenant that wants one slice, or what `fields` says."""
    values: dict[str, Any] = {
        "versions": VERSIONS,
        "name": name,
        "incarnation": f"{name}-1",
        "virtual_slices": [KIND],
        "user": name,
        "host": "laptop",
        "pid": 1,
    }
    return hello(**{**values, **fields})


def worker_hello(slice_id: str = "slice-0", **fields: Any) -> pb.WorkerHello:
    """Returns the hello of a worker that runs executors, or what `fields` says."""
    values: dict[str, Any] = {
        "versions": VERSIONS,
        "slice_id": slice_id,
        "incarnation": f"{slice_id}-1",
        "runs_executors": True,
    }
    return pb.WorkerHello(**{**values, **fields})
