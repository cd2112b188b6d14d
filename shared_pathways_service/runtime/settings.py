"""Loads settings: from an argument, its ``SPS_…`` variable, the profile, or the default.

A profile is a table ``[profiles.NAME]`` of the TOML file ``SPS_CONFIG``; the profile ``default`` is
used unless another is named. Default directories are in `user_directories`. Only
`private_directory` creates any.

A plain dataclass on purpose: every connect() imports this module, and the usual settings library
takes a third of a second to import.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.constants import COMPILE_CACHE_BYTES, LINK_IMAGE, PROXY_DEADLINE_S
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.runtime.file_failures import DISK_ERRORS, explanation
from shared_pathways_service.runtime.setting_readers import (
    LogFormat,
    check_patience,
    read_address,
    read_bytes,
    read_deadline,
    read_image,
    read_log_format,
    read_log_level,
    read_path,
    read_path_or_none,
    read_port,
)
from shared_pathways_service.runtime.user_directories import (
    config_file,
    container_part,
    default_home_directory,
    default_runtime_directory,
    make_private,
    of_container,
    unfit_for_sockets,
)

__all__ = ["Settings", "private_directory"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DENIED = (errno.EACCES, errno.EPERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that a user makes once instead of with every call; create them with `load`.

    SPS_PATIENCE is checked here, but applies to each process that has it in its environment.
    SPS_TOKEN_FILE is not a setting: inside a block and in a child of `sps run` it names the token
    of the *proxy*. The service's own token is in the runtime directory.

    Attributes:
      runtime_dir: Sockets, state file, locks. Its path is short and lower case, and only its user
        can access it. In a container it is a part of the given one, for this container only.
      state_dir: Journal, history, logs.
      cache_dir: Files that can be created again.
      config: The TOML file, which need not exist.
      profile: The selected profile; None: none.
      log_level: A level of `logging`.
      log_format: ``text`` or ``json``.
      bind_address: The address on which servers in pods listen; the embedded service always binds
        loopback.
      compile_cache_bytes: Size of the embedded service's cache of compiled programs in `cache_dir`;
        0: no cache.
      shared_memory_dir: A file system in memory, through which clients of the embedded service pass
        large buffers to their proxies. By default one with at least a quarter of the machine's
        memory. ``none``, or None: buffers are sent on the stream.
      proxy_deadline_s: Seconds for which a proxy in a cluster outlives the last extension of its
        deadline; from 5 up.
      link_image: The image of the sidecar that makes connections with Google's proxies resumable:
        any that has Python 3.11 or later as ``python3``.
      agent_metrics_port: Port on which the agent of each connection serves its metrics, from 0 to
        65535; 0: any free port, which `sps status` shows and which suits several connections; None:
        no metrics.
      agent_metrics_address: The address of this machine to bind for metrics.
    """

    runtime_dir: Path
    state_dir: Path
    cache_dir: Path
    config: Path
    profile: str | None = None
    log_level: str = "INFO"
    log_format: LogFormat = "text"
    bind_address: str = "127.0.0.1"
    compile_cache_bytes: int = COMPILE_CACHE_BYTES
    shared_memory_dir: Path | None = Path("/dev/shm")  # noqa: S108 - in a directory of our own
    proxy_deadline_s: float = PROXY_DEADLINE_S
    link_image: str = LINK_IMAGE
    agent_metrics_port: int | None = None
    agent_metrics_address: str = "127.0.0.1"

    @property
    def directories(self) -> Mapping[str, Path]:
        """The directories with files of this package, by the variable that sets each."""
        return {_variable(name): getattr(self, name) for name in _DIRECTORIES}

    @classmethod
    def load(
        cls,
        *,
        profile: str | None = None,
        environ: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Settings:
        """Loads the settings.

        Args:
          profile: A profile that must exist.
          environ: By default the process's environment.
          **arguments: Fields by name; None means not given.

        Raises:
          InvalidRequestError: A value is not valid; ``field`` names its source.
        """
        environ = os.environ if environ is None else environ
        check_patience(environ)
        given = {name: value for name, value in arguments.items() if value is not None}
        variables = {n: environ[_variable(n)] for n in _READERS if environ.get(_variable(n))}
        config = read_path(
            "config", given.get("config") or variables.get("config") or config_file()
        )
        wanted = profile or environ.get("SPS_PROFILE") or None
        used, table = _profile(config, wanted, "profile" if profile else "SPS_PROFILE")
        values: dict[str, Any] = {"config": config, "profile": used}
        for name, read in _READERS.items():
            if name in given:
                values[name] = read(name, given[name])
            elif name in variables:
                values[name] = read(_variable(name), variables[name])
            elif name in table:
                values[name] = read(f"profiles.{used}.{name}", table[name])
        for name in ("state_dir", "cache_dir"):
            if name not in values:
                values[name] = default_home_directory(name, _variable(name))
        if "runtime_dir" not in values:
            values["runtime_dir"] = default_runtime_directory()
        return cls(**values)


def private_directory(path: Path, field: str, *, is_shown: bool = False) -> Path:
    """Creates a directory if necessary, and checks that only this user can access it.

    Args:
      path: The directory; it and its parents are created if they are missing.
      field: The variable that sets it, for errors.
      is_shown: Whether others may read one that exists, and its group may write there.

    Returns:
      `path`.

    Raises:
      AccessDenied: It belongs to another user, or others can access it.
      InvalidRequestError: It cannot be created, or is not a directory.
      PreflightError: Its file system is full, read-only or has gone bad.
    """
    if path.name == container_part():
        # Whoever owns the directory above could replace it.
        private_directory(path.parent, field)
    try:
        make_private(path)
        # Does not follow a link, whose creator would choose the directory.
        status = path.lstat()
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise explanation(error, path, field) from error
        reason = error.strerror or str(error)
        raise InvalidRequestError(
            field,
            str(path),
            f"a directory ({reason})",
            hint=_elsewhere(field) if os.geteuid() == 0 and error.errno in _DENIED else "",
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequestError(field, str(path), "a directory, not a link to one")
    if status.st_uid != os.geteuid():
        raise _open_to_others(path, f"belongs to user {status.st_uid}", _elsewhere(field))
    if status.st_mode & (stat.S_IWOTH if is_shown else _OTHERS):
        raise _open_to_others(path, "can be accessed by other users", f"chmod 700 {path}")
    return path


def _elsewhere(field: str) -> str:
    """Returns what to do about a directory of another user."""
    hint = f"set {field} to another directory"
    if os.geteuid() == 0:
        hint += (
            ", such as a local one, or run as its user: a file system of a network may take root "
            "for another user (`root_squash`)"
        )
    return hint


def _open_to_others(path: Path, what: str, hint: str) -> AccessDenied:
    return AccessDenied(
        f"{path} {what}",
        verb="use",
        resource=str(path),
        rule="a directory of this user with mode 700",
        hint=hint,
    )


def _runtime_dir(field: str, value: object) -> Path:
    path = of_container(read_path(field, value))
    if problem := unfit_for_sockets(path):
        raise InvalidRequestError(field, str(path), f"a directory whose path is {problem}")
    return path


_READERS: dict[str, Callable[[str, object], Any]] = {
    "runtime_dir": _runtime_dir,
    "state_dir": read_path,
    "cache_dir": read_path,
    "config": read_path,
    "log_level": read_log_level,
    "log_format": read_log_format,
    "bind_address": read_address,
    "compile_cache_bytes": read_bytes,
    "shared_memory_dir": read_path_or_none,
    "proxy_deadline_s": read_deadline,
    "link_image": read_image,
    "agent_metrics_port": read_port,
    "agent_metrics_address": read_address,
}


_DIRECTORIES = ("runtime_dir", "state_dir", "cache_dir")


def _variable(name: str) -> str:
    return f"SPS_{name.upper()}"


# ---- files and profiles


def _profile(
    config: Path, wanted: str | None, field: str
) -> tuple[str | None, Mapping[str, object]]:
    """Returns the name and the table of the selected profile."""
    try:
        text = config.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError("SPS_CONFIG", str(config), f"a readable file ({error})") from None
    try:
        profiles = tomllib.loads(text).get("profiles", {})
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError("SPS_CONFIG", str(config), f"TOML ({error})") from error
    name = wanted or "default"
    if name not in profiles:
        if wanted is None:
            return None, {}
        known = ", ".join(sorted(profiles)) or "none"
        raise InvalidRequestError(field, wanted, f"a profile of {config} (it has: {known})")
    table = profiles[name]
    if not isinstance(table, dict):
        raise InvalidRequestError(f"profiles.{name}", table, "a table")
    unknown = sorted(set(table) - (_READERS.keys() - {"config"}))
    if unknown:
        known = ", ".join(sorted(_READERS.keys() - {"config"}))
        raise InvalidRequestError(
            f"profiles.{name}.{unknown[0]}", table[unknown[0]], f"one of the settings {known}"
        )
    return name, table
