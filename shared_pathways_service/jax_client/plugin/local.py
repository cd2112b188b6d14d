"""Adds this machine's CPU to a proxy: created on first use, and distinct from the proxy's devices.

JAX creates the clients of all its platforms at once. Here the CPU's client is created on first use,
because most programs never use it.

A proxy of CPUs would report the platform ``cpu``, the same name as the local CPU's:
`jax.devices(jax.default_backend())` would be this machine. So its client and its devices report
``proxy``. Programs are lowered for the proxy's actual platform nevertheless.
"""

# ruff: noqa: SLF001 - JAX has no public way to any of this

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "CPU",
    "PLATFORM",
    "LocalCpu",
    "claim",
    "hidden_cpu",
    "is_claimed",
    "is_hidden",
    "is_proxied_cpu",
    "add_lazily",
    "treat_as_accelerator",
    "warn_of_settings",
]

PLATFORM = "proxy"
CPU = "cpu"

#: The clients of proxies.
_claimed: weakref.WeakSet[Any] = weakref.WeakSet()
_strict: weakref.WeakSet[Any] = weakref.WeakSet()


def claim(client: Any) -> None:
    """Makes a proxy's client and its devices report the platform ``proxy`` instead of ``cpu``."""
    _settle_names()
    _claimed.add(client)


def is_claimed(client: Any) -> bool:
    """Whether a client belongs to a proxy."""
    return client in _claimed


def is_proxied_cpu(device: Any) -> bool:
    """Whether a device is a CPU of a proxy, and is to behave like this machine's CPU."""
    client = device.client
    return is_claimed(client) and client._raw_platform == CPU and client not in _strict


def treat_as_accelerator(client: Any) -> None:
    """Makes the CPUs of a proxy behave like TPUs, for strict mode."""
    _strict.add(client)


@functools.cache
def hidden_cpu() -> Any:
    """Returns a client of the local CPU outside of JAX's table, if JAX is to have none."""
    xla_client: Any = importlib.import_module("jaxlib.xla_client")
    return xla_client.make_cpu_client()


def is_hidden(client: Any) -> bool:
    """Whether a client is the one of `hidden_cpu`."""
    return hidden_cpu.cache_info().currsize > 0 and client is hidden_cpu()


def add_lazily(client: Any = None) -> LocalCpu | None:
    """Makes JAX create the client of the local CPU on first use; an existing client is kept.

    Returns the factory that replaces JAX's own one; None: it was replaced before.
    """
    factories = _xla_bridge()._backend_factories
    registration = factories[CPU]
    if getattr(registration.factory, "makes_later", False):
        return None
    cpu = LocalCpu(registration.factory, client)
    factories[CPU] = dataclasses.replace(registration, factory=cpu)
    return cpu


class LocalCpu:
    """A factory of JAX's client of the local CPU, which creates it on first use.

    Attributes:
      makes_later: Always true; identifies this kind of factory, also of another copy of this
        module.
      client: The client; None until it is created.
    """

    makes_later = True

    def __init__(self, make: Callable[[], Any], client: Any = None) -> None:
        self.client = client
        self._make = make
        self._making = threading.Lock()

    def __call__(self) -> Any:
        """Returns the client, or a placeholder until it is used; JAX calls this.

        JAX holds the lock of its table meanwhile, and then puts the result into the table.
        """
        if self.client is not None:
            return self.client
        xla_bridge = _xla_bridge()
        if not isinstance(xla_bridge._backends, _Backends):
            xla_bridge._backends = _Backends(xla_bridge._backends)
        return _Later(self)

    def refuse(self, make: Callable[[], Any]) -> None:
        """Makes the client's creation raise an error, in a forked child: `make` does.

        A thread of the parent may be creating it at the fork, and have the lock.
        """
        self._make = make
        self._making = threading.Lock()

    def made(self) -> Any:
        """Returns the client, and creates it the first time."""
        with self._making:
            if self.client is None:
                client = self._make()
                for hook in getattr(_xla_bridge(), "_backend_initialization_hooks", ()):
                    hook(client)
                self.client = client
        return self.client


class _Later:
    """A placeholder for the client in JAX's table; answers JAX's queries of every new client."""

    platform = CPU

    def __init__(self, cpu: LocalCpu) -> None:
        self.cpu = cpu

    def device_count(self) -> int:
        return 1  # JAX only checks that there are some

    def process_index(self) -> int:
        return 0

    def local_devices(self) -> list[Any]:
        return []  # for a line of JAX's log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cpu.made(), name)


class _Backends(dict[str, Any]):
    """JAX's clients by platform; looking up the local CPU's creates it."""

    def __getitem__(self, platform: str) -> Any:
        found = super().__getitem__(platform)
        if isinstance(found, _Later):
            found = self[platform] = found.cpu.made()
        return found

    def get(self, platform: str, default: Any = None) -> Any:
        # (`dict.get` would not call `__getitem__`.)
        return self[platform] if platform in self else default  # noqa: SIM401

    def values(self) -> Any:
        self._make_all()
        return super().values()

    def items(self) -> Any:
        self._make_all()
        return super().items()

    def __iter__(self) -> Iterator[str]:
        # Defined so that copies of this table are made with `__getitem__`.
        return super().__iter__()

    def _make_all(self) -> None:
        for platform in self:
            _ = self[platform]


@functools.cache
def _settle_names() -> None:
    """Makes claimed clients report their name, permanently; no other client is affected."""
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    xla_bridge = _xla_bridge()
    jaxlib.Client.platform = _renamed(jaxlib.Client.platform, lambda client: client)
    jaxlib.Device.platform = _renamed(jaxlib.Device.platform, lambda device: device.client)
    look_up = xla_bridge._get_backend_uncached
    xla_bridge.canonicalize_platform = _lowered_for(xla_bridge.canonicalize_platform, look_up)
    xla_bridge._get_backend_uncached = _found_by_name(look_up)
    xla_bridge.get_backend.cache_clear()


def _renamed(original: Any, client_of: Callable[[Any], Any]) -> property:
    def platform(self: Any) -> str:
        name: str = original.__get__(self)
        return PLATFORM if name == CPU and client_of(self) in _claimed else name

    return property(platform, doc=original.__doc__)


def _lowered_for(
    original: Callable[[str], str], look_up: Callable[..., Any]
) -> Callable[[str], str]:
    """Wraps JAX's look-up of a platform's rules, for a proxy and for the name that it reports.

    JAX's look-up of clients creates the proxy's client with its first call, and then looks up
    the client of that name, not the rules.
    """

    @functools.wraps(original)
    def canonicalize_platform(platform: str) -> str:
        is_look_up = sys._getframe(1).f_code is look_up.__code__
        # (Another thread may end the connection, so without the table's own look-up.)
        client: Any = None if is_look_up else dict.get(_xla_bridge()._backends, PLATFORM)
        # JAX resolves ``gpu`` by its own clients; with a proxy of GPUs, this machine may have none.
        if client in _claimed and platform in {PLATFORM, client.platform}:
            has: str = client._raw_platform
            return has
        return original(platform)

    return canonicalize_platform


def _names(proxy: Any) -> set[str]:
    """Returns the platforms by which a proxy is found; this machine's CPU is ``cpu``."""
    return {proxy.platform, proxy._raw_platform} - {CPU}


def _found_by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the look-up of clients, so that a proxy has its own name and the one it reports.

    Neither may be taken for the platform for which the proxy's programs are lowered.
    """

    @functools.wraps(original)
    def look_up(platform: Any = None) -> Any:
        xla_bridge = _xla_bridge()
        wanted = platform or _named_by_settings()
        if isinstance(wanted, str):
            clients = xla_bridge.backends()
            proxy = clients.get(PLATFORM)
            # (A proxy of TPUs reports ``tpu``, under which JAX has no client, and one of GPUs
            # ``gpu``, which JAX also calls ``cuda``.)
            if wanted == PLATFORM or (proxy in _claimed and wanted in _names(proxy)):
                return proxy or original(platform)
            if platform is None and proxy in _claimed:
                _warn_of(wanted)
        return original(platform)

    return look_up


def warn_of_settings() -> None:
    """Warns once if a setting of JAX sends unplaced work elsewhere than to the proxy."""
    named = _named_by_settings()
    if named and named != PLATFORM:
        _warn_of(named)


def _named_by_settings() -> str | None:
    xla_bridge = _xla_bridge()
    settings = (xla_bridge._XLA_BACKEND.value, xla_bridge._PLATFORM_NAME.value)
    return next(filter(None, settings), None)


@functools.cache
def _warn_of(platform: str) -> None:
    warnings.warn(
        f"jax_platform_name or jax_xla_backend is {platform!r}: unplaced work runs there, not "
        "on the slices; leave both unset to use the slices",
        stacklevel=2,
    )


def _xla_bridge() -> Any:
    return importlib.import_module("jax._src.xla_bridge")
