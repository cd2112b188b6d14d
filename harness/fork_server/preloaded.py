"""Loads what the processes of tests import, onto a shelf."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Collection

from harness.fork_server.requests import SET_BY_JAX, SET_BY_SPS
from harness.fork_server.shelf import Shelf

__all__ = ["load"]

_PACKAGE = "shared_pathways_service"
_SERVERS = f"{_PACKAGE}.servers"
_PROXY = f"{_SERVERS}.proxy"
#: Slow ones that users' programs import, and what the package's processes import at their start and
#: when they serve. All of it starts no thread.
_NAMES = (
    "numpy",
    "psutil",
    "grpc.aio",
    "jax.numpy",
    f"{_PACKAGE}.isc_pathways",
    f"{_PACKAGE}.agent.__main__",
    f"{_PACKAGE}.homes.embedded.home",
    f"{_PACKAGE}.homes.kubernetes.home",
    f"{_PACKAGE}.jax_client",
    f"{_PACKAGE}.cli.__main__",
    # (Typer imports it, and pydantic with it, when it has options to read.)
    "typer._adapters",
    f"{_PACKAGE}.cli.commands.manager.status",
    f"{_SERVERS}.supervisor.__main__",
    f"{_SERVERS}.resource_manager.__main__",
    f"{_SERVERS}.worker.__main__",
    f"{_SERVERS}.executor.__main__",
    f"{_SERVERS}.executor.opened_clients",
    f"{_PROXY}.main",
    f"{_PROXY}.rm_link",
    f"{_PROXY}.engine.engine",
    f"{_PROXY}.engine.compile_cache",
    f"{_PROXY}.executors.executors_of_flags",
    f"{_PROXY}.executors.core_stream",
    f"{_PROXY}.session.service",
    f"{_PROXY}.transport.grpc_transport",
    f"{_PROXY}.activity",
    f"{_PROXY}.counters_reporter",
    f"{_PROXY}.watchdog",
    f"{_PROXY}.ffi_handlers",
    f"{_SERVERS}.xla.xla_internals",
    f"{_SERVERS}.xla.host_platforms",
    f"{_SERVERS}.xla.host_machine",
)
_JAX_CONFIG = "jax._src.config"
#: It has the namespace of plug-ins, if there is one on the path when it is imported.
_WITH_PLUG_INS = "jax._src.xla_bridge"
_PLUG_INS = "jax_plugins"
#: It has a context with the system's authorities, which these variables name.
_WITH_AUTHORITIES = "aiohttp.connector"
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def load(visible: Collection[str]) -> Shelf:
    """Loads everything; returns the shelf with all of it except for the visible modules."""
    shelf = Shelf()
    _set_what_is_read_early()
    before = dict(os.environ)
    # (A program that imports none of them has none of their filters.)
    with shelf.loading(), warnings.catch_warnings():
        for name in _NAMES:
            # (Under another release of JAX, a module may be missing.)
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    set_by_jax = {name: value for name, value in os.environ.items() if name not in before}

    def imported(names: Collection[str]) -> None:
        if "jax" in names:
            for name, value in set_by_jax.items():
                os.environ.setdefault(name, value)
        if _JAX_CONFIG in names:
            _configure_jax()
        if _WITH_PLUG_INS in names:
            _find_plug_ins()
        if _WITH_AUTHORITIES in names and any(
            os.environ.get(name) != before.get(name) for name in _AUTHORITIES
        ):
            connector = sys.modules[_WITH_AUTHORITIES]
            vars(connector)["_SSL_CONTEXT_VERIFIED"] = connector._make_ssl_context(True)
        _forget_what_was(names)

    shelf.on_import = imported
    shelf.put_away(visible)
    # What is loaded stays: collections neither look at it nor copy its pages.
    gc.collect()
    gc.freeze()
    return shelf


def _find_plug_ins() -> None:
    """Looks for JAX's plug-ins on the path of the program."""
    with contextlib.suppress(ModuleNotFoundError):
        vars(sys.modules[_WITH_PLUG_INS])[_PLUG_INS] = importlib.import_module(_PLUG_INS)


def _forget_what_was(names: Collection[str]) -> None:
    """Lets modules that remember something of their process find it out anew."""
    if "numpy.random" in names:
        sys.modules["numpy.random"].seed()
    if "platform" in names:
        # (The name of the machine.)
        vars(sys.modules["platform"])["_uname_cache"] = None
    if "tempfile" in names:
        # (What TMPDIR was.)
        vars(sys.modules["tempfile"])["tempdir"] = None


def _set_what_is_read_early() -> None:
    for name, value in SET_BY_JAX.items():
        # (A process that had imported JAX started this one. Its import here must set it again.)
        if os.environ.get(name) == value:
            del os.environ[name]
    for name, value in SET_BY_SPS.items():
        os.environ.setdefault(name, value)


def _configure_jax() -> None:
    """Sets JAX's options by the environment, as it does when it is imported."""
    config = sys.modules[_JAX_CONFIG].config
    for variable, text in os.environ.items():
        name = variable.lower()
        if not variable.startswith("JAX_") or name not in config.values:
            continue
        value = config.values[name]
        if isinstance(value, bool):
            config.update(name, text.lower() in ("y", "yes", "t", "true", "on", "1"))
        elif isinstance(value, (int, float)):
            config.update(name, type(value)(text))
        else:
            config.update(name, text)
