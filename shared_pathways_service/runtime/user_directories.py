"""The default directories of a user, and the part of a runtime directory that a container has."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.runtime.processes import container_key

__all__ = [
    "RUNTIME_DIR_LIMIT",
    "config_file",
    "container_part",
    "default_home_directory",
    "default_runtime_directory",
    "is_utf8",
    "make_private",
    "of_container",
    "unfit_for_sockets",
]

_log = logging.getLogger(__name__)

_APP = "shared-pathways-service"
#: Bytes of the runtime directory's path: a socket's name in it has up to 20 bytes, and the whole
#: path must fit the smallest system limit (103 bytes, macOS).
RUNTIME_DIR_LIMIT = 82
_HOME_DIRECTORIES: Mapping[str, Callable[[str], Path]] = {
    "state_dir": platformdirs.user_state_path,
    "cache_dir": platformdirs.user_cache_path,
}
#: What this process has told its user: one line is enough.
_told: set[str] = set()


def config_file() -> Path:
    """Returns the default configuration file, which need not exist."""
    directory = _in_home(platformdirs.user_config_path)
    # (Not a file in a directory that others could have created; nor in another user's home, which
    # `sudo` may leave in the environment; nor a path that is not UTF-8, as settings refuse it.)
    if directory is None or not is_utf8(directory) or not _may_enter(directory):
        return Path(os.devnull)
    return directory / "config.toml"


def _may_enter(directory: Path) -> bool:
    """Whether this user may look into a directory, or could if it existed."""
    try:
        directory.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return os.access(directory, os.X_OK)


def default_home_directory(name: str, variable: str) -> Path:
    """Returns platformdirs' ``state_dir`` or ``cache_dir``, or a temporary one in its place.

    A user may have no home, or one that cannot be written: an id without an entry in the system's
    list of users, as clusters give containers, or a file system that is mounted for reading only.

    Raises:
      InvalidRequestError: No temporary directory can be used either.
    """
    path = _in_home(_HOME_DIRECTORIES[name])
    if path is not None and is_utf8(path) and _can_write(path):
        return path
    why = f"user {os.getuid()} has no home" if path is None else _why_not_used(path)
    parent = _temporary_directory(variable, why)
    temporary = parent / f"sps-{os.getuid()}-{name.removesuffix('_dir')}"
    if not _told:
        _told.add(why)
        _log.warning(
            "%s: %s is used instead, and may be lost (%s names another directory)",
            why,
            temporary,
            variable,
        )
    return temporary


def default_runtime_directory() -> Path:
    """Returns a directory for sockets that is the same for every process of this user.

    As tmux and screen do, not the system's directory of a session (`XDG_RUNTIME_DIR`): it goes with
    the user's last session, and services and jobs go on. Nor one that depends on a variable, which
    not all processes have: a user has one service on a machine.

    Raises:
      InvalidRequestError: Neither that directory nor a temporary one can be used.
    """
    variable, name = "SPS_RUNTIME_DIR", f"sps-{os.getuid()}"
    common = Path("/tmp")  # noqa: S108 - checked on use
    if _can_write(common):
        return of_container(common / name)
    # (Looked up only here: on a full disk there is none, and sockets need no space.)
    why = _why_not_used(common)
    path = of_container(_temporary_directory(variable, why) / name)
    if problem := unfit_for_sockets(path):
        raise _no_default(variable, f"{why}, and the path {path} is not {problem}")
    return path


def make_private(path: Path) -> None:
    """Creates a directory, unless it exists, and those of its parents that are missing.

    Only this user can enter any of them. (`Path.mkdir` creates parents as the umask says, and a
    later process refuses a directory that others can enter.)
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def of_container(path: Path) -> Path:
    """Returns a container's own part of a runtime directory, which others may share with it.

    From a container, the processes of the others cannot be seen, nor be joined by their ids.
    """
    own = container_part()
    return path if own in ("", path.name) else path / own


def container_part() -> str:
    """Returns the name of this container's part of a runtime directory; empty outside of one."""
    key = container_key()
    return key and f"container-{key}"


def unfit_for_sockets(path: Path) -> str:
    """Returns which requirement of sockets a directory's path violates; empty: none."""
    text = str(path)
    if not is_utf8(path):
        return "UTF-8"
    if len(os.fsencode(text)) > RUNTIME_DIR_LIMIT:
        return f"at most {RUNTIME_DIR_LIMIT} bytes long, as paths of sockets are limited"
    if text != text.lower():
        return "lower case, as JAX lower-cases the addresses of proxies"
    return ""


def _temporary_directory(variable: str, why: str) -> Path:
    """Returns the system's directory for temporary files.

    Args:
      variable: The variable that sets the directory for which this one stands in.
      why: The reason why the usual directory is not used.

    Raises:
      InvalidRequestError: No temporary directory can be written, as in a container whose root is
        read-only, or its path is not UTF-8.
    """
    try:
        path = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise _no_default(
            variable, f"{why}, and no temporary directory (TMPDIR, /tmp) can be written"
        ) from error
    if not is_utf8(path):
        raise _no_default(variable, f"{why}, and TMPDIR, {_escaped(path)}, is not UTF-8")
    return path


def _no_default(variable: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        variable,
        None,
        "a directory",
        message=f"{variable} has no default: {why}",
        hint=f"set {variable} to a directory that you can write",
    )


def is_utf8(path: Path) -> bool:
    """Whether a path is UTF-8, as messages between processes need it; other names are bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _why_not_used(path: Path) -> str:
    return f"{path} cannot be written" if is_utf8(path) else f"{_escaped(path)} is not UTF-8"


def _escaped(path: Path) -> str:
    """Returns a path as logs and terminals can show it, which are UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


def _in_home(usual: Callable[[str], Path]) -> Path | None:
    """Returns one of platformdirs' directories; None: the user has no home.

    Then platformdirs raises, or (older versions) returns a path with a ``~``.
    """
    with contextlib.suppress(RuntimeError):
        if (path := usual(_APP)).is_absolute():
            return path
    return None


def _can_write(path: Path) -> bool:
    """Whether a directory can be written, or created if it does not exist."""
    # (Not `Path.exists`, which raises an error in a directory that this user may not enter, as of
    # a home on a server that takes root for another user.)
    there = next(parent for parent in (path, *path.parents) if os.path.exists(parent))  # noqa: PTH110
    return os.access(there, os.W_OK | os.X_OK)
