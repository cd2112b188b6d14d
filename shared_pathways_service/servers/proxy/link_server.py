"""The far end of a resumable link, in front of this proxy, as a child process.

A process of its own does not wait for this one's interpreter lock, so it answers while programs are
traced or compiled. It ends with this process, whatever ends that: its standard input is a pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.metrics.families import Family, Kind, Sample
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.location import with_package_path

__all__ = ["LinkOptions", "LinkServer"]

_MODULE = "shared_pathways_service.tunnel.link"
_LONGEST_PAUSE_S = 30.0
#: Seconds between two lines about refused connections.
_REFUSED_LOG_INTERVAL_S = 60.0

_COUNTERS = {
    "accepted": ("link_accepted_connections", "Connections of links that showed the token."),
    "refused": ("link_refused_connections", "Connections of links that did not show the token."),
    "unknown": ("link_unknown_connections", "Connections of link sessions that are not known."),
    "expired": ("link_expired_sessions", "Link sessions to which no connection came in time."),
}
_GAUGES = {
    "sessions": ("link_sessions", "Link sessions that are open or may be resumed."),
    "carriers": ("link_connections", "Connections of links that are open."),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Options of a far end.

    Attributes:
      port: Its TCP port.
      bind_address: The address to bind.
      token_file: The file with the token of the proxy's clients.
      keep_s: Seconds for which a session without a connection is kept.
    """

    port: int
    bind_address: str
    token_file: str
    keep_s: float


class LinkServer:
    """Runs the far end, and starts it again when it ends by itself.

    Args:
      options: The far end's options.
    """

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._target = ""
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._first_start = threading.Event()
        self._is_ready = False
        self._lock = threading.Lock()
        self._restarts = 0
        self._reports = _Reports()
        self._refusals = _Refusals()

    @property
    def pid(self) -> int | None:
        """The process; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self, target: str) -> None:
        """Starts it, and returns when it listens.

        Args:
          target: The proxy's address, ``HOST:PORT`` or ``unix:/PATH``.

        Raises:
          SharedPathwaysError: It has ended instead, or is too slow; the log says why.
        """
        self._target = target
        self._thread = threading.Thread(target=self._run, name="link-server", daemon=True)
        self._thread.start()
        self._first_start.wait(timeouts.LINK_SERVER_START.s)
        if not self._is_ready:
            self.close()
            raise SharedPathwaysError(
                f"the far end of the link cannot listen on port {self._options.port}",
                hint="is the port of --link_port taken? The log has the reason",
            )

    def close(self) -> None:
        """Ends it; near ends learn of the end."""
        self._is_closing.set()
        with self._lock:
            process = self._process
            if process is not None:
                process.terminate()
        if process is not None:
            try:
                process.wait(timeouts.LINK_SERVER_END.s)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread is not None:
            self._thread.join()

    def families(self) -> list[Family]:
        """Returns the counters of all its processes together, and the gauges of the present one."""
        reports = self._reports
        return [
            *(_family("counter", *_COUNTERS[name], reports.total(name)) for name in _COUNTERS),
            *(_family("gauge", *_GAUGES[name], reports.present.get(name, 0)) for name in _GAUGES),
            _family("counter", "link_restarts", "Starts after the first one.", self._restarts),
        ]

    # ---- the thread

    def _run(self) -> None:
        backoff = Backoff(longest_s=_LONGEST_PAUSE_S)
        while not self._is_closing.is_set():
            end = self._run_once(backoff)
            self._first_start.set()
            if self._is_closing.is_set() or not self._is_ready:
                return
            pause_s = backoff.next_pause_s()
            glog(
                "E",
                f"The link's far end {end}, and with it the sessions that it kept; it is started "
                f"again in {pause_s:.1f} s",
            )
            self._is_closing.wait(pause_s)
            self._restarts += 1

    def _run_once(self, backoff: Backoff) -> str:
        """Runs the process to its end; returns how it ended."""
        try:
            process = self._start_process()
        except OSError as error:
            return f"cannot be started ({error})"
        if process is None:
            return "was not started"
        assert process.stdout
        with process:
            for line in process.stdout:
                self._take(line.rstrip("\n"), backoff)
        self._reports = self._reports.after_the_end()
        return f"has ended with exit code {process.returncode}"

    def _start_process(self) -> subprocess.Popen[str] | None:
        """Starts the process; returns None after `close`."""
        options = self._options
        with self._lock:
            if self._is_closing.is_set():
                return None
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", _MODULE),
                    f"--port={options.port}",
                    f"--bind_address={options.bind_address}",
                    f"--target={self._target}",
                    f"--token_file={options.token_file}",
                    f"--keep_s={options.keep_s}",
                    "--ends_with_stdin",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
                env=with_package_path(os.environ),
                # Signals for the group of this process must not end it first.
                start_new_session=True,
            )
            return self._process

    def _take(self, line: str, backoff: Backoff) -> None:
        report = None
        if line.startswith('{"link": '):
            with contextlib.suppress(ValueError):
                report = json.loads(line)["link"]
        if report is None:
            # (Its own log, or a traceback.)
            glog("W", f"The link's far end: {line}")
            return
        if not self._reports.present:
            glog("I", f"The link's far end listens on port {report['port']}")
            backoff.reset()
            self._is_ready = True
            self._first_start.set()
        self._reports = dataclasses.replace(self._reports, present=report)
        self._refusals.look(self._reports.total("refused"), time.monotonic())


@dataclasses.dataclass(frozen=True, slots=True)
class _Reports:
    """What the processes have reported; replaced as a whole, as another thread reads it."""

    ended: Mapping[str, int] = dataclasses.field(default_factory=dict)
    present: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def total(self, name: str) -> int:
        return self.ended.get(name, 0) + self.present.get(name, 0)

    def after_the_end(self) -> _Reports:
        return _Reports({name: self.total(name) for name in _COUNTERS})


class _Refusals:
    """Logs refused connections, at most once per `_REFUSED_LOG_INTERVAL_S`."""

    def __init__(self) -> None:
        self._logged = 0
        self._logged_at: float | None = None

    def look(self, refused: int, now: float) -> None:
        is_early = self._logged_at is not None and now < self._logged_at + _REFUSED_LOG_INTERVAL_S
        if refused == self._logged or is_early:
            return
        more = refused - self._logged
        glog("W", f"The link's far end refused {more} connections without the token")
        self._logged, self._logged_at = refused, now


def _family(kind: Kind, name: str, text: str, value: float) -> Family:
    return Family(f"sps_proxy_{name}", kind, text, [Sample(value)])
