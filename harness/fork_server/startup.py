"""Makes a forked process what was requested, and runs its program."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import importlib.util
import io
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn, TextIO

from harness.fork_server import client
from harness.fork_server.process_title import show_as
from harness.fork_server.requests import (
    SET_BY_RUN,
    SITE,
    USUAL_LOCALE,
    Program,
    Start,
    added_paths,
    environment_of,
    has_locale,
    program_of,
)

__all__ = [
    "become",
    "close_all_but",
    "end_with",
    "run",
    "show_server",
    "start_by",
    "starts_processes",
    "take_signals",
]

#: Programs below which processes are forked as well. (Others start few, or look at their children.)
_STARTERS = frozenset(
    {
        "shared_pathways_service.agent",
        "shared_pathways_service.cli",
        "shared_pathways_service.cli.job_runner",
        "shared_pathways_service.cli.verification.tenant_program",
        "shared_pathways_service.servers.supervisor",
        "shared_pathways_service.servers.worker",
        "shared_pathways_service.testing.testbed",
    }
)
_TITLE = [b"fork-server-of-a-test"]
#: What SET_BY_RUN says, as parameters of mallopt (malloc.h). (-1: memory is never given back.)
_SET_BY_RUN = {-8: 1, -4: 0, -1: -1}
#: `sys.path` without what a program adds to it.
_path = list(sys.path)


def take_signals(start: Start) -> None:
    """Gives this process the session, the group and the signals that were requested."""
    if start.new_session:
        os.setsid()
    else:
        with contextlib.suppress(OSError):
            os.setpgid(0, start.group)
    for number in signal.valid_signals():
        ignored = number in start.ignored
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        # (Python itself ignores these.)
        if number in (signal.SIGPIPE, signal.SIGXFSZ):
            usual = signal.SIG_IGN
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN if ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)


def become(start: Start, descriptors: Sequence[int]) -> Program:
    """Gives this process all else that was requested; returns its program."""
    _set_descriptors(descriptors, start.descriptors)
    for number, *wanted in start.limits:
        if resource.getrlimit(number) != tuple(wanted):
            resource.setrlimit(number, (wanted[0], wanted[1]))
    os.umask(start.umask)
    os.chdir(start.directory)
    environment = environment_of(start.environment)
    os.environ.clear()
    os.environ.update(environment)
    if not has_locale(environment):
        os.environ.update(USUAL_LOCALE)
    if SET_BY_RUN.items() <= environment.items():
        # (glibc reads these before a program.)
        for parameter, value in _SET_BY_RUN.items():
            ctypes.CDLL(None).mallopt(parameter, value)
    time.tzset()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX") or None
    show_as(
        [os.fsencode(word) for word in start.arguments],
        [os.fsencode(pair) for pair in start.environment],
    )
    program = program_of(start.arguments, environment)
    assert program is not None, start.arguments
    sys.orig_argv[:] = start.arguments
    _open_streams(is_unbuffered=program.is_unbuffered)
    _set_path(program, environment)
    sys.warnoptions.extend(program.warnings)
    warnings._processoptions(program.warnings)  # type: ignore[attr-defined]
    if program.reports_faults:
        faulthandler.enable()
    return program


def end_with(error: OSError, start: Start, descriptors: Sequence[int]) -> NoReturn:
    """Reports why there is no process, on its standard error; ends as `nsenter` does then."""
    standard_error = dict(zip(start.descriptors, descriptors, strict=True)).get(2)
    if standard_error is not None:
        with contextlib.suppress(OSError):
            os.write(standard_error, f"fork server: {error}\n".encode())
    os._exit(1)


def starts_processes(program: Program) -> bool:
    """Whether a fork server for the program's own processes is worth it."""
    return program.kind != "-m" or program.name in _STARTERS


def start_by(channel: socket.socket, loaded_with: Mapping[str, str]) -> None:
    """Lets a fork server at the other end start this process's processes."""
    client.install(client.ForkClient(lambda: channel, loaded_with))


def run(program: Program) -> None:
    """Runs the program as the main one of this process.

    At the end, a process without JAX is not taken apart: to free what it has loaded, it would copy
    all of that.
    """
    code = 0
    try:
        _customize()
        _run(program)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    if "jax" in sys.modules:
        sys.exit(code)
    # As the interpreter does first.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if threading.active_count() == 1:
        # (Files that the program's own variables hold open are flushed with them. Daemon threads
        # would miss the variables: in an interpreter that ends they cannot run.)
        vars(sys.modules["__main__"]).clear()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, AttributeError):
        sys.exit(code)  # (The interpreter reports it, and has an exit code for it.)
    os._exit(code & 0xFF)


def _customize() -> None:
    """Imports what PYTHONPATH has for this, as `site` does."""
    spec = PathFinder.find_spec(SITE, added_paths(os.environ))
    if spec is None or spec.loader is None:
        return
    sys.modules[SITE] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs
        text = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"Error in {SITE}; set PYTHONVERBOSE for traceback:\n{text}\n")


def _run(program: Program) -> None:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = [program.name if program.kind == "file" else program.kind, *program.words]
    if program.kind == "-m":
        runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]
        return
    source, name = program.name, "<string>"
    if program.kind == "file":
        name = str(Path(program.name).absolute())
        source = Path(name).read_text(encoding="utf-8")
        main.__file__ = name
    # (Not with this module's `from __future__`.)
    exec(compile(source, name, "exec", dont_inherit=True), vars(main))


def close_all_but(kept: Collection[int]) -> None:
    """Closes all other file descriptors."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if (fd := int(path.name)) not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def show_server() -> None:
    """Shows this process as a fork server, with its environment."""
    show_as(_TITLE, [os.fsencode(f"{name}={value}") for name, value in os.environ.items()])


def _set_descriptors(received: Sequence[int], wanted: Sequence[int]) -> None:
    above = max([*received, *wanted]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in received]
    close_all_but(moved)
    for fd, number in zip(moved, wanted, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _open_streams(*, is_unbuffered: bool) -> None:
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, name, is_unbuffered=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, name: str, *, is_unbuffered: bool) -> TextIO:
    """Opens a standard stream as Python does (`create_stdio` in pylifecycle.c)."""
    old = getattr(sys, f"__{name}__")
    raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
    raw.name = f"<{name}>"
    buffer: io.RawIOBase | io.BufferedIOBase
    if fd == 0:
        buffer = io.BufferedReader(raw)
    elif is_unbuffered:
        buffer = raw
    else:
        buffer = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=old.encoding,
        errors="backslashreplace" if fd == 2 else old.errors,
        newline=None if fd == 0 else "\n",
        line_buffering=not is_unbuffered and (fd == 2 or raw.isatty()),
        write_through=is_unbuffered,
    )
    stream.mode = "r" if fd == 0 else "w"  # type: ignore[misc]
    return stream


def _set_path(program: Program, environment: Mapping[str, str]) -> None:
    first = []
    if not program.is_safe_path:
        first = [{"-c": "", "-m": str(Path.cwd())}.get(program.kind) or ""]
        if program.kind == "file":
            first = [str(Path(program.name).absolute().parent)]
    sys.path[:] = [*first, *added_paths(environment), *_path[1:]]
