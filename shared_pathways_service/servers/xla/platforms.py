"""The devices of a proxy: the machine's CPU, its GPUs, or placeholders for those of executors."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from jaxlib import gpu_solver, xla_client

from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "CPU",
    "Cuda",
    "Placeholders",
    "Platform",
    "cuda_plugin",
    "load_cuda",
    "make_platform",
    "no_gpu",
]

_FLAG: Final = "--platform"
_PLUGIN: Final = "cuda"


class Platform(Protocol):
    """The source of XLA's clients; its name is that for which JAX lowers programs."""

    name: str

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Returns a client of XLA's, and its device for each of the proxy's."""


class _Cpu:
    """The machine's CPU: as many devices as are wanted, and a client of its own for each set."""

    name = "cpu"

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Makes a client."""
        # Executors wait for each program: XLA's own asynchrony would not help.
        with _threads_that_compute():
            client = xla_client.make_cpu_client(asynchronous=False, num_devices=len(device_ids))
        return client, sorted(client.local_devices(), key=lambda device: device.id)


@contextlib.contextmanager
def _threads_that_compute() -> Iterator[None]:
    """Gives threads that start meanwhile a lower urgency than those that answer clients.

    XLA has at least one thread per device, and each looks for more work for a while before it
    sleeps. With the batch policy they have the same share of the processor, but do not interrupt
    running threads when they wake: over 8 devices on two cores that gives a third more programs per
    second.
    """
    # (0 is the calling thread; its new threads inherit the policy.)
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # on Linux only; or a policy was set already
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # forbidden in some containers: slower, and nothing else
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


CPU: Final[Platform] = _Cpu()


class Cuda:
    """The machine's GPUs, by jaxlib's CUDA plug-in; at least `count` are required.

    There is one client of all GPUs: each GPU has its own streams, so a program that does not end
    delays only its own devices; and a second client would take memory from the first.
    """

    name = "cuda"

    def __init__(
        self,
        count: int,
        plugins: Callable[[], Sequence[Any]] = lambda: list(
            importlib.metadata.entry_points(group="jax_plugins")
        ),
        make_client: Callable[[], Any] | None = None,
    ) -> None:
        plugin = cuda_plugin(plugins)
        try:
            load_cuda(plugin)
            self._client = (make_client or _make_client)()
        except Exception as error:  # its types are the plug-in's and jaxlib's own
            raise no_gpu(_first_line(error)) from error
        self._gpus = sorted(self._client.local_devices(), key=lambda device: device.id)
        if count > len(self._gpus):
            raise InvalidRequestError(
                "--virtual_slices",
                f"{count} chips",
                f"at most {len(self._gpus)} chips with --platform=cuda: each is a GPU, and this "
                f"machine has {len(self._gpus)}",
            )

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Returns the client, and the GPUs of the same numbers."""
        return self._client, [self._gpus[i] for i in device_ids]


class Placeholders:
    """CPU devices that stand for those of executors, in shardings and compile options."""

    def __init__(self, name: str) -> None:
        self.name = name

    def memory_kinds(self, of_cpus: Sequence[str]) -> tuple[str, ...]:
        """Returns the kinds of memory that an executor's devices have, of those of CPUs."""
        return tuple(k for k in of_cpus if self.name == CPU.name or k in _OF_ACCELERATORS)

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Makes a client."""
        return CPU.devices(device_ids)


#: Kinds of memory of GPUs and of TPUs.
_OF_ACCELERATORS: Final = frozenset({"device", "pinned_host"})


def cuda_plugin(plugins: Callable[[], Sequence[Any]]) -> Any:
    """Returns the entry point of JAX's CUDA plug-in.

    Raises:
      InvalidRequestError: There is none.
    """
    plugin = next((p for p in plugins() if p.name.startswith("xla_cuda")), None)
    if plugin is None:
        raise InvalidRequestError(
            _FLAG,
            Cuda.name,
            "cpu, as JAX's CUDA plug-in is not installed",
            hint="pip install 'jax[cuda12]' or 'jax[cuda13]', of the same version as jaxlib",
        )
    return plugin


def load_cuda(plugin: Any) -> None:
    """Loads JAX's CUDA plug-in, with all that programs call by name."""
    # (It registers itself with JAX, and its kernels.)
    plugin.load().initialize()
    # Some kernels call LAPACK, which JAX loads when it lowers a program that has one, so not here.
    # Without it such a program (`jnp.linalg.eig`) crashes with a segmentation fault.
    gpu_solver.initialize_hybrid_kernels()


def no_gpu(why: str) -> InvalidRequestError:
    """Returns the error for a machine on which CUDA finds no GPU."""
    return InvalidRequestError(
        _FLAG,
        Cuda.name,
        f"cpu, or a machine with a GPU that CUDA can use ({why})",
        hint="the machine or container needs NVIDIA's driver (libcuda.so.1) and access to its GPUs",
    )


def make_platform(name: str, count: int) -> Platform:
    """Returns the platform of a name in this process, with at least `count` devices."""
    return Cuda(count) if name == Cuda.name else CPU


def _make_client() -> Any:
    if not xla_client.pjrt_plugin_initialized(_PLUGIN):
        xla_client.initialize_pjrt_plugin(_PLUGIN)
    options = dict(xla_client.generate_pjrt_gpu_plugin_options())
    return xla_client.make_c_api_client(_PLUGIN, options, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
