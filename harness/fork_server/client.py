"""Redirects starts of Python processes to a fork server, which answers with their process ids.

The processes become children of this one, since it adopts orphans while it waits for the answer:
`subprocess` and `os.waitpid` treat them like all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.fork_server.contained import within
from harness.fork_server.entered import entry_of
from harness.fork_server.requests import (
    Start,
    as_text,
    blocked_now,
    environment_of,
    ignored_now,
    is_plain,
    limits_now,
    program_of,
)
from shared_pathways_service.runtime.umask import current_umask

__all__ = ["ForkClient", "install", "paused", "receive", "send"]

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_libc = ctypes.CDLL(None, use_errno=True)

_fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]
_posix_spawn = os.posix_spawn


class ForkClient:
    """Asks a fork server for processes."""

    def __init__(self, connect: Callable[[], socket.socket], ours: Mapping[str, str]) -> None:
        """Connects when the first process is started.

        Args:
          connect: Returns a connection to the server.
          ours: The server's environment.
        """
        self.is_paused = False
        self._connect = connect
        self._ours = dict(ours)
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], wanted: Mapping[str, Any]
    ) -> int | None:
        """Returns the id of a process; None: it is to be started otherwise."""
        inner = within(arguments)
        directory, target = wanted["directory"], 0
        if inner is not None:
            arguments = inner
        elif (entry := entry_of(arguments)) is not None:
            arguments, directory, target = entry.command, entry.directory, entry.target
            # (As the shell does.)
            environment = {**environment, "PWD": directory}
        program = program_of(arguments, environment)
        if self.is_paused or program is None or not is_plain(program, environment, self._ours):
            return None
        if not Path(directory).is_dir():
            return None  # (the caller gets the error)
        descriptors: Mapping[int, int] = wanted["descriptors"]
        if any(not _is_open(fd) for fd in descriptors.values()):
            return None
        start = Start(
            arguments=list(arguments),
            contained=inner is not None,
            machine=target,
            environment=[f"{name}={value}" for name, value in environment.items()],
            directory=directory,
            descriptors=list(descriptors),
            new_session=wanted["new_session"],
            group=wanted["group"],
            umask=wanted["umask"],
            limits=limits_now(),
            ignored=wanted["ignored"],
            blocked=wanted["blocked"],
        )
        answer = None
        with self._lock:
            if self.is_paused:
                # (An interrupt in another thread gave the connection up.)
                return None  # type: ignore[unreachable]
            if self._channel is None:
                self._channel = self._connect()
            try:
                with _adopting_orphans(), contextlib.suppress(ConnectionError):
                    send(self._channel, start.to_json(), list(descriptors.values()))
                    answer, _ = receive(self._channel)
            except BaseException:
                self.forget()  # (The next answer may be the one to this request.)
                raise
        if answer is None:
            self.forget()  # (A worker kills all its children when no executor runs.)
            return None
        pid: int = answer["pid"]
        return pid

    def forget(self) -> None:
        """Gives the connection up: in a fork, which must not use it, or after an interrupt."""
        self.is_paused = True
        self._lock = threading.Lock()
        if self._channel is not None:
            self._channel.close()


_clients: list[ForkClient] = []


def install(client: ForkClient) -> None:
    """Lets a client start this process's processes, instead of one that did before."""
    if not _clients:
        subprocess._fork_exec = _forked  # type: ignore[attr-defined]
        # (Otherwise it starts some processes, of Python 3.13 on, with `os.posix_spawn`.)
        subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]
        os.posix_spawn = _spawned
        os.register_at_fork(after_in_child=_forget)
    _clients[:] = [client]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Starts processes anew in the block, and so all that those start."""
    before = [client.is_paused for client in _clients]
    for client in _clients:
        client.is_paused = True
    try:
        yield
    finally:
        for client, was_paused in zip(_clients, before, strict=True):
            client.is_paused = was_paused


def send(channel: socket.socket, data: Any, descriptors: Sequence[int] = ()) -> None:
    """Sends plain data and file descriptors."""
    text = json.dumps(data).encode()
    socket.send_fds(channel, [len(text).to_bytes(4, "big")], descriptors)
    channel.sendall(text)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """Receives plain data and file descriptors; None: the other end has ended."""
    try:
        head, descriptors, _, _ = socket.recv_fds(channel, 4, 250)
    except ConnectionError:
        return None, []
    if len(head) < 4:  # (They come as they were sent, with the descriptors.)
        return None, []
    text = bytearray()
    while len(text) < int.from_bytes(head, "big"):
        if not (part := channel.recv(1 << 16)):
            return None, []
        text += part
    return json.loads(text), descriptors


def _forget() -> None:
    for client in _clients:
        client.forget()


def _forked(*given: Any) -> int:
    """Does what `_posixsubprocess.fork_exec` does, with its arguments."""
    (arguments, programs, close_fds, kept, directory, environment) = given[:6]
    (stdin, _, _, stdout, _, stderr, _, errors) = given[6:14]
    (restores_signals, new_session, group, gid, gids, uid, umask, preexec) = given[14:22]
    words = [as_text(word) for word in arguments]
    if (
        not (restores_signals and preexec is None)
        or (as_text(programs[0]) != words[0] and not _is_wrapped(words))
        or any(one not in (None, -1) for one in (gid, gids, uid))
        or group > 0
        or (group == -1 and not new_session and _has_unknown_group())
    ):
        return int(_fork_exec(*given))
    pairs = None if environment is None else [as_text(pair) for pair in environment]
    pid = _clients[0].start(
        words,
        os.environ if pairs is None else environment_of(pairs),
        {
            "directory": str(Path(as_text(directory or ".")).absolute()),
            "descriptors": {
                **{fd: fd for fd in (kept if close_fds else _inheritable()) if fd != errors},
                0: max(stdin, 0),
                1: stdout if stdout >= 0 else 1,
                2: stderr if stderr >= 0 else 2,
            },
            "new_session": bool(new_session),
            "group": os.getpgrp() if group == -1 else group,
            "umask": umask if umask >= 0 else current_umask(),
            "ignored": ignored_now(),
            "blocked": blocked_now(),
        },
    )
    return int(_fork_exec(*given)) if pid is None else pid


def _has_unknown_group() -> bool:
    """Whether a fork could not be given this process's group: on a machine, one from outside."""
    return os.getpgrp() == 0


def _inheritable() -> list[int]:
    """Returns this process's descriptors that a program inherits, but for the standard streams."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        # (One of them was the directory's, and threads may close others.)
        with contextlib.suppress(OSError):
            if int(path.name) > 2 and os.get_inheritable(int(path.name)):
                found.append(int(path.name))
    return found


def _is_wrapped(words: Sequence[str]) -> bool:
    return within(words) is not None or entry_of(words) is not None


def _spawned(path: Any, argv: Any, env: Any, **options: Any) -> int:
    """Does what `os.posix_spawn` does with the options that this project uses."""
    known = {"file_actions", "setsid", "setsigmask", "setsigdef"}
    if (
        as_text(path) != sys.executable
        or set(options) - known
        or (not options.get("setsid") and _has_unknown_group())
    ):
        return _posix_spawn(path, argv, env, **options)
    sys.audit("os.posix_spawn", path, argv, env)
    descriptors = {0: 0, 1: 1, 2: 2}
    opened = []
    for action, number, *rest in options.get("file_actions", ()):
        if action == os.POSIX_SPAWN_OPEN:
            opened.append(os.open(*rest))
            descriptors[number] = opened[-1]
        elif action == os.POSIX_SPAWN_DUP2:
            descriptors[rest[0]] = descriptors.get(number, number)
        else:
            descriptors.pop(number, None)
    try:
        pid = _clients[0].start(
            [as_text(word) for word in argv],
            {as_text(name): as_text(value) for name, value in env.items()},
            {
                "directory": str(Path.cwd()),
                "descriptors": descriptors,
                "new_session": bool(options.get("setsid")),
                "group": os.getpgrp(),
                "umask": current_umask(),
                "ignored": [n for n in ignored_now() if n not in options.get("setsigdef", ())],
                "blocked": [int(n) for n in options.get("setsigmask", blocked_now())],
            },
        )
    finally:
        for fd in opened:
            os.close(fd)
    return _posix_spawn(path, argv, env, **options) if pid is None else pid


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
