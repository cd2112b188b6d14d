"""JAX's plug-ins for accelerators: what they find on this host, and their clients."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from jaxlib import xla_client

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla import xla_internals
from shared_pathways_service.servers.xla.platforms import cuda_plugin, load_cuda, no_gpu

__all__ = ["CudaPlugin", "Plugin", "TpuPlugin"]

#: Variables with the indices of the chips that libtpu uses, separated by commas; the first counts.
_VISIBLE_TPUS: Final = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")


class Plugin(Protocol):
    """A plug-in for accelerators of this host."""

    def count(self) -> int:
        """Returns the number of devices; makes no client.

        Raises:
          InvalidRequestError: The plug-in, or what it needs, is not installed.
        """

    def make_client(self, options: Mapping[str, Any], coordination: Any) -> Any:
        """Makes a client.

        Args:
          options: The plug-in's own options, over its defaults.
          coordination: JAX's client of a coordination service; None: without other processes.

        Raises:
          StatusError: That failed.
        """


class CudaPlugin:
    """JAX's CUDA plug-in, `jax_cuda12_plugin` or `jax_cuda13_plugin`."""

    def __init__(
        self,
        plugins: Callable[[], Sequence[Any]] = lambda: list(
            importlib.metadata.entry_points(group="jax_plugins")
        ),
    ) -> None:
        self._plugins = plugins

    def count(self) -> int:
        """Asks CUDA's driver, which heeds `CUDA_VISIBLE_DEVICES`."""
        cuda_plugin(self._plugins)
        count = ctypes.c_int()
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
        except (OSError, AttributeError) as error:
            raise no_gpu(str(error)) from error
        if code:
            raise no_gpu(f"CUDA error {code}")
        return count.value

    def make_client(self, options: Mapping[str, Any], coordination: Any) -> Any:
        """Loads the plug-in with the first client, which reads XLA's flags."""
        try:
            load_cuda(cuda_plugin(self._plugins))
            if not xla_client.pjrt_plugin_initialized("cuda"):
                xla_client.initialize_pjrt_plugin("cuda")
            defaults = dict(xla_client.generate_pjrt_gpu_plugin_options())
            return xla_client.make_c_api_client("cuda", {**defaults, **options}, coordination)
        except Exception as error:  # its types are the plug-in's and jaxlib's own
            raise StatusError(Code.UNAVAILABLE, f"no client of CUDA's: {error}") from error


class TpuPlugin:
    """libtpu."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def count(self) -> int:
        """Counts TPUs on the PCI bus, as JAX does, of which libtpu uses those of a variable."""
        if xla_internals.tpu_library() is None:
            raise InvalidRequestError(
                "--platform",
                "tpu",
                "cpu, as libtpu is not installed with the executor",
                hint="pip install 'jax[tpu]', of the same version as jaxlib",
            )
        found = xla_internals.tpus_on_host()
        visible = next(filter(None, map(self._environ.get, _VISIBLE_TPUS)), "")
        return min(found, len(visible.split(","))) if visible else found

    def make_client(self, options: Mapping[str, Any], coordination: Any) -> Any:
        """Loads libtpu with the first client; it finds its slice by its own variables."""
        try:
            if not xla_client.pjrt_plugin_loaded("tpu"):
                xla_client.load_pjrt_plugin_dynamically("tpu", xla_internals.tpu_library())
            if not xla_client.pjrt_plugin_initialized("tpu"):
                xla_client.initialize_pjrt_plugin("tpu")
            return xla_client.make_c_api_client("tpu", dict(options), coordination)
        except Exception as error:  # its types are libtpu's and jaxlib's own
            raise StatusError(Code.UNAVAILABLE, f"no client of libtpu's: {error}") from error
