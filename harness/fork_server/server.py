"""The fork server: loads modules once, then forks a process for each request.

    python -c 'from harness.fork_server.server import main; main()' DESCRIPTOR

Each process is forked twice, so that it is an orphan, whose parent becomes the process that asked
for it: the nearest one above that adopts orphans.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings

from harness.fork_server import contained, entered, preloaded, startup
from harness.fork_server.client import receive, send
from harness.fork_server.requests import Start

__all__ = ["main", "serve"]

#: They are meant for the process that the server belongs to, whose end ends it.
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


def main() -> None:
    """Runs it, and each process that it forks."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    visible = frozenset(sys.modules)
    environment = dict(os.environ)
    shelf = preloaded.load(visible)
    os.environ.clear()
    os.environ.update(environment)
    sys.meta_path.insert(0, shelf)
    run_requests(channel, environment)


def run_requests(channel: socket.socket, environment: dict[str, str]) -> None:
    """Serves; in a forked process, runs its program.

    Args:
      channel: The connection to the process that it serves.
      environment: The one that modules were loaded with.
    """
    start, descriptors = serve(channel)
    try:
        if start.contained:
            contained.enter()
        elif start.machine:
            entered.enter(start.machine)
    except OSError as error:
        # (This process still has the fork server's own streams, which lead nowhere.)
        startup.end_with(error, start, descriptors)
    program = startup.become(start, descriptors)
    # (In a container, the fork server would be one more process.)
    if not start.contained and startup.starts_processes(program):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            run_requests(theirs, environment)
            return
        theirs.close()
        startup.start_by(ours, environment)
    startup.run(program)


def serve(channel: socket.socket) -> tuple[Start, list[int]]:
    """Forks a process for each request, in which it returns that; ends with the other end."""
    _stand_by(channel)
    while True:
        data, descriptors = receive(channel)
        if data is None:
            os._exit(0)
        start = Start.from_json(data)
        ready, go = os.pipe()
        pid = _fork_twice(channel, start)
        if pid == 0:
            os.close(go)
            os.read(ready, 1)
            return start, descriptors
        os.close(ready)
        for fd in descriptors:
            os.close(fd)
        send(channel, {"pid": pid})
        os.close(go)


def _fork_twice(channel: socket.socket, start: Start) -> int:
    """Returns the id of the second fork, which no longer is below this process; in it, 0."""
    pid_read, pid_write = os.pipe()
    with warnings.catch_warnings():
        # (JAX warns about its threads, and it has none yet.)
        warnings.simplefilter("ignore")
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                # (With its id, the caller may signal it and its group at once.)
                startup.take_signals(start)
                os.write(pid_write, str(os.getpid()).encode())
                os.close(pid_read)
                os.close(pid_write)
                channel.close()
                return 0
            # (Otherwise the kernel may take the group that this end leaves for an orphaned one, and
            # send it SIGHUP if a process of it is stopped.)
            os.setsid()
            os._exit(0)
    os.close(pid_write)
    os.waitpid(middle, 0)
    with os.fdopen(pid_read) as file:
        return int(file.read())


def _stand_by(channel: socket.socket) -> None:
    """Lets go of all that belongs to the process that is served."""
    # (A stop of its group, as by Ctrl-Z, would outlast it here.)
    os.setpgid(0, 0)
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    startup.close_all_but({0, 1, 2, channel.fileno()})
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    startup.show_server()
