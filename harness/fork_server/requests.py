"""Which starts of a process can be forked, and what describes them."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Self

__all__ = [
    "SET_BY_JAX",
    "SET_BY_RUN",
    "SET_BY_SPS",
    "SITE",
    "USUAL_LOCALE",
    "Start",
    "added_paths",
    "as_text",
    "blocked_now",
    "environment_of",
    "has_locale",
    "ignored_now",
    "is_plain",
    "limits_now",
    "program_of",
]

_REPOSITORY = str(Path(__file__).parents[2])
#: Options of Python that a forked process can have, besides `-W`.
_FAULTHANDLER = ("-X", "faulthandler")
_FLAGS = ("-P", "-u")
_UNDERSTOOD = frozenset(
    {
        *("PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONSAFEPATH"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
        # gRPC reads it with the first connection by TLS that is given no certificates.
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    }
)
#: The first of these that is set is the locale of texts. Without one, Python takes and sets this.
_LOCALES = ("LC_ALL", "LC_CTYPE", "LANG")
USUAL_LOCALE = {"LC_CTYPE": "C.UTF-8"}
#: Variables that are read before the first line of a program: they must be the fork server's.
_READ_EARLY = (
    *("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "OMP_", "MKL_"),
    *("GRPC_", "TF_CPP_"),
)
#: Variables of XLA, which is never loaded by the processes of these modules.
_XLAS = "TF_CPP_"
_WITHOUT_XLA = frozenset(
    f"shared_pathways_service.{name}"
    for name in ("agent", "servers.resource_manager", "servers.supervisor", "servers.worker")
)
#: What an interpreter imports before the program, if there is such a module.
SITE = "sitecustomize"
#: What a directory on PYTHONPATH may have besides modules of its own.
_NO_MODULES = frozenset({f"{SITE}.py", "__init__.py", "__pycache__"})
#: Variables that JAX's import sets unless they are set; XLA reads them when it is loaded.
SET_BY_JAX = {"TF_CPP_MIN_LOG_LEVEL": "1"}
#: What `sps` sets before it imports gRPC, which reads it then.
SET_BY_SPS = {"GRPC_VERBOSITY": "ERROR"}
#: What `sps run` sets for programs, so that large arrays move faster: a fork tells glibc itself.
#: (As in the package, of which this module imports nothing.)
SET_BY_RUN = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "40000000000",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What an interpreter runs.

    Attributes:
      kind: ``-c``, ``-m`` or ``file``.
      name: Source, module or path.
      words: The program's own arguments.
      warnings: Filters of warnings.
      is_safe_path: Whether the working directory is not in the import path.
    """

    kind: str
    name: str
    words: tuple[str, ...]
    warnings: tuple[str, ...]
    is_safe_path: bool
    is_unbuffered: bool
    reports_faults: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """A process that is to be started.

    Attributes:
      arguments: All of them, with the interpreter.
      contained: Whether it is a container's process 1.
      machine: The id of a process of the machine on which it runs; 0: on this one.
      environment: Its ``NAME=value``.
      descriptors: Its open file descriptors.
      group: Its process group, if it gets no session of its own; 0: one of its own.
      limits: The caller's resource limits.
      ignored: Signals that it ignores.
      blocked: Signals that it blocks.
    """

    arguments: list[str]
    contained: bool
    machine: int
    environment: list[str]
    directory: str
    descriptors: list[int]
    new_session: bool
    group: int
    umask: int
    limits: list[list[int]]
    ignored: list[int]
    blocked: list[int]

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Makes it from plain data."""
        return cls(**data)


def as_text(value: Any) -> str:
    """Returns an argument or a path as text."""
    return os.fsdecode(value)


def program_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Program | None:
    """Returns what a command line runs; None: not this interpreter, or not as a fork could.

    Args:
      arguments: Those of the command line.
      environment: The process's.
    """
    if not arguments or arguments[0] != sys.executable:
        return None
    flags = {"PYTHONUNBUFFERED", "PYTHONSAFEPATH"} & {n for n, v in environment.items() if v}
    is_safe, unbuffered = "PYTHONSAFEPATH" in flags, "PYTHONUNBUFFERED" in flags
    faults = False
    filters = []
    rest = list(arguments[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m"):
        if tuple(rest[:2]) == _FAULTHANDLER:
            faults = True
            del rest[:2]
        elif rest[0] == "-W":
            filters.extend(rest[1:2])
            del rest[:2]
        elif rest[0] in _FLAGS:
            is_safe, unbuffered = is_safe or rest[0] == "-P", unbuffered or rest[0] == "-u"
            del rest[0]
        else:
            return None
    kind = "file"
    if rest and rest[0] in ("-c", "-m"):
        kind = rest.pop(0)
    if not rest or (kind == "file" and not rest[0].endswith(".py")):
        return None
    return Program(
        kind=kind,
        name=rest[0],
        words=tuple(rest[1:]),
        warnings=tuple(filters),
        is_safe_path=is_safe,
        is_unbuffered=unbuffered,
        reports_faults=faults,
    )


def environment_of(pairs: Sequence[str]) -> dict[str, str]:
    """Returns variables as a mapping."""
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def added_paths(environment: Mapping[str, str]) -> list[str]:
    """Returns the entries of PYTHONPATH."""
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def limits_now() -> list[list[int]]:
    """Returns this process's resource limits: number, soft and hard."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return [[number, *resource.getrlimit(number)] for number in sorted(numbers)]


def ignored_now() -> list[int]:
    """Returns the signals that this process ignores."""
    return [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]


def _adds_only(directory: str) -> bool:
    """Whether a directory on PYTHONPATH has modules of its own, and none in place of another."""
    if not Path(directory).is_absolute():
        return False
    try:
        files = {path.name for path in Path(directory).iterdir()} - _NO_MODULES
    except OSError:
        return False
    # (This process may have it on its own path.)
    others = [path for path in sys.path if Path(path or ".").absolute() != Path(directory)]
    return not any(_is_module_in(others, name.partition(".")[0]) for name in files)


def _is_module_in(paths: Sequence[str], name: str) -> bool:
    if name == SITE or name in sys.stdlib_module_names:
        return True
    # (A directory without a module's code comes after all others of its name.)
    spec = PathFinder.find_spec(name, paths) if name.isidentifier() else None
    return spec is not None and spec.loader is not None


def is_plain(program: Program, environment: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Whether a fork of the server can have an environment.

    Args:
      program: What the process runs.
      environment: The process's.
      ours: The fork server's.
    """
    if any(path != _REPOSITORY and not _adds_only(path) for path in added_paths(environment)):
        return False
    if SET_BY_RUN.items() <= environment.items():
        environment = {n: value for n, value in environment.items() if n not in SET_BY_RUN}
    usual = {**SET_BY_JAX, **SET_BY_SPS}
    environment, ours = ({**usual, **_with_locale(one)} for one in (environment, ours))
    names = {n for n in (*environment, *ours) if n.startswith(_READ_EARLY)} - _UNDERSTOOD
    if program.kind == "-m" and program.name in _WITHOUT_XLA:
        names = {name for name in names if not name.startswith(_XLAS)}
    return all(environment.get(name) == ours.get(name) for name in names)


def has_locale(environment: Mapping[str, str]) -> bool:
    """Whether variables name the locale of texts."""
    return any(environment.get(name) for name in _LOCALES)


def _with_locale(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns variables without the usual locale of texts, by whatever name."""
    named = [environment[name] for name in _LOCALES if environment.get(name)]
    if named[:1] not in ([], [*USUAL_LOCALE.values()]):
        return environment
    return {name: value for name, value in environment.items() if name not in _LOCALES}


def blocked_now() -> list[int]:
    """Returns the signals that this thread blocks."""
    return [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
