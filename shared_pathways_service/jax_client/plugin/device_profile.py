"""One profile of a proxy and its executors, over a stream that needs grpcio when it is opened.

`protocol/profiles.proto` defines its messages, which are read and written here without protobuf, as
in `callback_wire`.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .callback_stream import open_stream
from .callback_wire import bytes_field, fields_of, number_field
from .timeout_table import timeouts

__all__ = ["Collected", "DeviceProfile", "ProfileFailed"]

_PATH = "/shared_pathways_service.v1.Profiles/Take"
#: Round trips to the proxy's clock at each end of the profile.
_ROUNDS = 8
#: Fields of a ProfileRequest and of a ProfileReply.
_START, _CLOCK, _STOP, _COLLECT = 1, 2, 3, 4
_STARTED, _CLOCK_IS, _STOPPED, _PART, _FAILED, _DONE = 1, 2, 3, 4, 5, 6

Sample = tuple[int, int, int]
#: The content of each file, by its name; and what is missing.
Collected = tuple[dict[str, bytes], list[str]]


class ProfileFailed(Exception):  # noqa: N818 - reads as what happened
    """There is no profile of the proxy.

    Attributes:
      is_refused: Whether the proxy refuses one now, as there is another.
      is_unknown: Whether the proxy, or this Python, has no profiles at all.
    """

    def __init__(self, text: str, *, is_refused: bool = False, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused
        self.is_unknown = is_unknown


class DeviceProfile:
    """A profile of a proxy and its executors, from now on until `stop`; `close` must follow.

    It ends with its stream, also if this process is killed.

    Args:
      address: The proxy, as ``unix:/path`` or ``host:port``.
      token: Its token; None: none.
      host_tracer_level: As in `jax.profiler.ProfileOptions`, like the next one.
      python_tracer_level: Of Python functions in the servers' processes.

    Attributes:
      most_s: The seconds after which the proxy ends it by itself.

    Raises:
      ProfileFailed: The proxy cannot be reached, or cannot be profiled now.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        *,
        host_tracer_level: int = 2,
        python_tracer_level: int = 0,
    ) -> None:
        try:
            grpc: Any = importlib.import_module("grpc")
        except ImportError as error:
            text = "this Python has no grpcio: pip install grpcio"
            raise ProfileFailed(text, is_unknown=True) from error
        self._rpc_error: type[Exception] = grpc.RpcError
        self._samples: list[Sample] = []
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[int, Any, int] | ProfileFailed]
        self._replies = queue.SimpleQueue()
        sent = iter(self._outgoing.get, None)
        self._channel, self._call = open_stream(grpc, address, _PATH, token, sent)
        self._reader = threading.Thread(target=self._read, name="sps-profile", daemon=True)
        try:
            self._reader.start()
            levels = number_field(1, host_tracer_level) + number_field(2, python_tracer_level)
            started, _ = self._ask(_START, levels, _STARTED, timeouts.PROFILE_STARTED.s)
            self.most_s = dict(fields_of(started)).get(2, 0) / 1000
            self._read_clock()
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> None:
        """Waits while the profile goes on.

        Raises:
          ProfileFailed: The proxy has ended meanwhile.
        """
        try:
            found = self._replies.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(found, ProfileFailed):
            raise found
        raise ProfileFailed(f"the proxy sent message {found[0]} of a profile, not asked for it")

    def stop(self) -> None:
        """Ends the profile; the proxy keeps it.

        Raises:
          ProfileFailed: The proxy has ended, or does not answer.
        """
        self._read_clock()
        self._ask(_STOP, b"", _STOPPED, timeouts.PROFILE_STOPPED.s)

    def collect(self, began_ns: int = 0) -> Collected:
        """Returns the files of the profile, after `stop`.

        Args:
          began_ns: What their times are relative to, in nanoseconds since 1970; 0: the earliest
            start of a process.

        Raises:
          ProfileFailed: The proxy has ended, or does not answer.
        """
        self._send(_COLLECT, number_field(1, began_ns) + _encoded(self._samples))
        files: dict[str, list[bytes]] = {}
        while True:
            field, value, _ = self._next(timeouts.PROFILE_PART.s)
            if field == _DONE:
                notes = [text.decode() for number, text in fields_of(value) if number == 1]
                return {name: b"".join(parts) for name, parts in files.items()}, notes
            if field == _PART:
                part = dict(fields_of(value))
                files.setdefault(part[1].decode(), []).append(part.get(2, b""))

    def close(self) -> None:
        """Ends the stream, and with it a profile that has not been stopped."""
        self._outgoing.put(None)
        self._call.cancel()
        if self._reader.ident is not None:
            self._reader.join(timeouts.PROFILE_CLOSE.s)
        self._channel.close()

    def _read_clock(self) -> None:
        for _ in range(_ROUNDS):
            sent_ns = time.time_ns()
            value, received_ns = self._ask(_CLOCK, b"", _CLOCK_IS, timeouts.PROFILE_REPLY.s)
            remote_ns = dict(fields_of(value)).get(1, 0)
            self._samples.append((sent_ns, remote_ns, received_ns))

    def _ask(self, field: int, body: bytes, reply: int, timeout_s: float) -> tuple[bytes, int]:
        """Returns the reply to a request, and when it was received."""
        self._send(field, body)
        found, value, received_ns = self._next(timeout_s)
        if found != reply:
            raise ProfileFailed(f"the proxy sent message {found} of a profile, not {reply}")
        return value, received_ns

    def _send(self, field: int, body: bytes) -> None:
        self._outgoing.put(bytes_field(field, body))

    def _next(self, timeout_s: float) -> tuple[int, Any, int]:
        try:
            found = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            raise ProfileFailed(f"the proxy has not answered within {timeout_s:g} s") from None
        if isinstance(found, ProfileFailed):
            raise found
        if found[0] == _FAILED:
            failure = dict(fields_of(found[1]))
            text = failure.get(2, b"").decode(errors="replace")
            raise ProfileFailed(text, is_refused=failure.get(1) == _FAILED_PRECONDITION)
        return found

    def _read(self) -> None:
        try:
            for raw in self._messages():
                received_ns = time.time_ns()
                for field, value in fields_of(raw):
                    self._replies.put((field, value, received_ns))
        except self._rpc_error:
            self._replies.put(self._failure())
        except Exception as error:  # noqa: BLE001 - whatever it is, the profile ends with it
            text = f"a message of the proxy cannot be read: {error}"
            self._replies.put(ProfileFailed(text))
        else:
            self._replies.put(ProfileFailed("the proxy has ended the profile"))

    def _messages(self) -> Iterator[bytes]:
        yield from self._call

    def _failure(self) -> ProfileFailed:
        code, details = self._call.code(), self._call.details()
        name = getattr(code, "name", str(code))
        if name == "UNIMPLEMENTED":
            text = "the proxy is of an older version, which is not profiled"
            return ProfileFailed(text, is_unknown=True)
        return ProfileFailed(f"{name}: {details}")


#: absl's code of a refusal.
_FAILED_PRECONDITION = 9


def _encoded(samples: Sequence[Sample]) -> bytes:
    return b"".join(
        bytes_field(2, b"".join(number_field(i, ns) for i, ns in enumerate(sample, 1)))
        for sample in samples
    )
