"""Makes JAX's client pass large buffers in files to a proxy on this machine.

JAX's client (0.9 to 0.12.0.1) reads the settings once per process: the size from which on it writes
files, when its first client is created, and their directory with the first file. Connections have
different directories, so the setting is the path of a descriptor, which leads to the directory of
the present one.

The directory may be removed: logind removes a user's files in /dev/shm at the end of the user's
last session (RemoveIPC=yes, its default), and the user's programs go on. The client cannot send a
large buffer in another way then, and a file that it cannot write ends the session. So the directory
is made again, at once where the kernel reports its removal, and before each `jax.device_put`. One
that the service removes has the sticky bit, and is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import secrets
import select
import stat
import threading
from pathlib import Path

__all__ = ["SETTINGS", "end", "present_directory", "repair", "share"]

#: Variables of JAX's client.
SETTINGS = (
    "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY",
    "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES",
)
#: Minimum bytes of a buffer that is passed in a file: below, a message is as fast.
_LARGE_BYTES = 1 << 20
#: Milliseconds between two looks while the kernel does not report removals.
_LOOK_MS = 10
#: Of <sys/inotify.h>: IN_DELETE, IN_MOVED_FROM and IN_ONLYDIR.
_REMOVALS = 0x200 | 0x40 | 0x01000000
_THREAD = "sps-transfer-files"

_log = logging.getLogger(__name__)
_lock = threading.Lock()
#: The descriptor whose path JAX's client has; None: it does not write files.
_door: int | None = None
_present: _Directory | None = None


def share(transfer_dir: Path | None) -> Path | None:
    """Makes a directory for the next client in one that it shares with its proxy.

    This sets `SETTINGS`, which must remain until the client is created.

    Returns:
      The directory; None: this client sends large buffers on the stream.
    """
    global _present  # noqa: PLW0603 - as JAX's client, one per process
    end()
    for name in SETTINGS:
        os.environ.pop(name, None)
    made = None if transfer_dir is None else _made(transfer_dir)
    if made is None:
        if _door is not None:
            _log.warning(
                "arrays from 1 MiB on will end this connection: an earlier one of this process "
                "passed them in files, which JAX's client then does for as long as the process "
                "lives, and this proxy shares no memory with it: start a new process"
            )
        return None
    _lead_to(made)
    os.environ.update(zip(SETTINGS, (f"/proc/self/fd/{_door}", str(_LARGE_BYTES)), strict=True))
    _present = _Directory(made)
    return made


def end(directory: Path | None = None) -> None:
    """Ends the care for the present directory; if one is given, only for that."""
    global _present  # noqa: PLW0603
    if (present := _present) is not None and directory in {None, present.path}:
        _present = None
        present.close()


def present_directory() -> Path | None:
    """Returns the directory of the present client; None: it has none."""
    return _present.path if _present is not None else None


def repair() -> None:
    """Makes the present directory again if it was removed, before a buffer is passed in it."""
    # (A directory that was removed has no links. This costs less than a microsecond.)
    if (present := _present) is not None and _door is not None and not os.fstat(_door).st_nlink:
        present.restore()


class _Directory:
    """A directory that exists as long as this object is not closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Whoever makes the upper ones again, it must not be another user: files in them could be
        # exchanged.
        self._ours = tuple(itertools.takewhile(_is_ours, (path, *path.parents)))
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._process = os.getpid()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name=_THREAD, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; the directory is the proxy's to remove."""
        with _lock:
            self._is_closed = True
        os.close(self._woken)
        if self._process == os.getpid():
            self._thread.join()

    def restore(self) -> None:
        """Makes the directory again, unless it is there or was removed by the service."""
        if self._process != os.getpid():
            return  # (the lock may be held for ever, by a thread of the parent)
        with _lock, contextlib.suppress(OSError):
            if self._is_closed or self._is_right():
                return
            _make(self.path)
            if all(map(_is_ours, self._ours)):
                _lead_to(self.path)
                _log.info("made %s again, which was removed", self.path)

    def _is_right(self) -> bool:
        assert _door is not None
        known = os.fstat(_door)
        if known.st_mode & stat.S_ISVTX:
            return True
        try:
            return os.path.samestat(known, self.path.stat())
        except OSError:
            return False

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._wake)
            waiting = select.poll()
            waiting.register(self._wake, select.POLLIN)
            watch = _removals()
            if watch is not None:
                stack.callback(os.close, watch)
                waiting.register(watch, select.POLLIN)
            while True:
                self.restore()
                is_watched = watch is not None and _add(watch, self.path.parent)
                # (What was removed between the two is not reported.)
                is_safe = is_watched and self._is_right()
                ready = dict(waiting.poll(None if is_safe else _LOOK_MS))
                if self._wake in ready:
                    return
                if watch is not None and watch in ready:
                    os.read(watch, 1 << 16)


def _made(transfer_dir: Path) -> Path | None:
    # One directory per client to avoid collisions: files are named by handles alone.
    mine = transfer_dir / f"{os.getpid()}-{secrets.token_hex(8)}"
    try:
        if transfer_dir.lstat().st_uid not in {0, os.geteuid()}:
            return None  # (another user has made it, after its removal)
        mine.mkdir(mode=0o700)
    except OSError:
        return None
    return mine


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        _make(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _is_ours(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _lead_to(directory: Path) -> None:
    """Makes the path that JAX's client has lead to a directory."""
    global _door  # noqa: PLW0603
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if _door is None:
        _door = opened
    else:
        os.dup2(opened, _door, inheritable=False)
        os.close(opened)


def _removals() -> int | None:
    """Returns a descriptor for reports of removals; None: there is none."""
    try:
        opened: int = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    return None if opened < 0 else opened


def _add(watch: int, directory: Path) -> bool:
    return bool(ctypes.CDLL(None).inotify_add_watch(watch, os.fsencode(directory), _REMOVALS) >= 0)
