"""The private parts of JAX that switching it over needs, all of them, and each with its reason.

Tried with the versions of JAX that `pyproject.toml` allows; `check` says at once, and by name,
what another version lacks.
"""

# ruff: noqa: SLF001 - private parts are what this module is for

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import jax

from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.jax_client.plugin import local
from shared_pathways_service.jax_client.plugin.plugin import PLATFORM, let_pass

__all__ = [
    "BackendTable",
    "check",
    "discover_plugins",
    "abandon_backends",
    "put_cpu_beside",
    "register",
]

# Not typed, on the whole or in part.
config: Any = jax.config
backend: Any = importlib.import_module("jax.extend.backend")
compiler: Any = importlib.import_module("jax._src.compiler")
custom_partitioning: Any = importlib.import_module("jax._src.custom_partitioning")
dispatch: Any = importlib.import_module("jax._src.dispatch")
pjit: Any = importlib.import_module("jax._src.pjit")
pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
xla_bridge: Any = importlib.import_module("jax._src.xla_bridge")
jaxlib: Any = importlib.import_module("jaxlib._jax")
xla_client: Any = importlib.import_module("jaxlib.xla_client")

#: Where the part is, its name, and what it is needed for.
_PARTS: tuple[tuple[Any, str, str], ...] = (
    # JAX makes its clients once and keeps them here. Without putting the old ones back, the CPU
    # after a connection would be another client, whose arrays do not mix with older ones.
    (xla_bridge, "_backends", "the clients that exist, by platform"),
    (xla_bridge, "_backend_errors", "why a platform has none"),
    (xla_bridge, "_default_backend", "the client that is used when none is named"),
    (xla_bridge, "_backend_lock", "guards the three"),
    (xla_bridge, "get_backend", "caches the look-up in them (cache_clear)"),
    # A proxy of CPUs is not the local CPU, see `local`.
    (xla_bridge, "_get_backend_uncached", "the look-up itself"),
    (xla_bridge, "canonicalize_platform", "for which platform programs are lowered"),
    (xla_bridge, "_XLA_BACKEND", "a setting that names a platform"),
    (xla_bridge, "_PLATFORM_NAME", "another"),
    (jaxlib.Client, "_raw_platform", "what a client's programs are lowered for"),
    # Functions that programs call stay here, see `callbacks`.
    (compiler, "backend_compile_and_load", "compiles a program, without them"),
    (pxla, "ExecuteReplicated", "begins a program, in a cell of a notebook for one"),
    (pjit, "_get_fastpath_data", "whether later calls bypass that"),
    (xla_bridge, "local_devices", "where a callback has its arguments"),
    # Functions that XLA calls while it compiles stay here, too, see `compile_calls`.
    (xla_client, "encode_inspect_sharding_callback", "how a program names one of them"),
    (custom_partitioning, "_sharding_callbacks", "the others, by what programs name them"),
    (custom_partitioning, "_custom_partitioning_partition", "calls one of them"),
    (custom_partitioning, "_custom_partitioning_infer_sharding_from_operands", "another"),
    (custom_partitioning, "_custom_partitioning_propagate_user_sharding", "another"),
    # A forked child is refused these, see `forked`.
    (jaxlib.Client, "compile_and_load", "compiles a program"),
    (jaxlib.LoadedExecutable, "execute_sharded", "runs a program"),
    (jaxlib.ArrayImpl, "is_deleted", "is asked before an array is read"),
    (jaxlib, "batched_device_put", "puts arrays on devices"),
    # A factory can be registered publicly, not removed or put back.
    (xla_bridge, "_backend_factories", "the factories, by platform"),
    # Libraries register by this name or by the public one: both must be deaf to a second `proxy`.
    (xla_bridge, "register_backend_factory", "how a factory is registered"),
    # Plug-ins found later would register their `proxy` over ours.
    (xla_bridge, "_discover_and_register_pjrt_plugins", "looks for plug-ins, once"),
    # clear_backends() waits for them; on a proxy that is gone or hangs that never ends well.
    (dispatch, "runtime_tokens", "what is still to be waited for (clear)"),
)


def check() -> None:
    """Looks whether this JAX has all the private parts.

    Raises:
      VersionSkew: It lacks some; the message names them.
    """
    lacking = [
        f"{module.__name__}.{name}" for module, name, _ in _PARTS if not hasattr(module, name)
    ]
    if lacking:
        raise VersionSkew(
            f"jax {jax.__version__} lacks what switching it to a proxy needs: {', '.join(lacking)}",
            client=f"jax {jax.__version__}",
            hint="install a version of jax that this package names in its requirements",
        )


def discover_plugins() -> None:
    """Makes JAX look for its plug-ins now if it has not yet."""
    xla_bridge._discover_and_register_pjrt_plugins()


def leave_backends() -> None:
    """Makes JAX forget its clients and all that is compiled for them, once they are done."""
    backend.clear_backends()


def abandon_backends() -> None:
    """Makes JAX forget its clients and all that is compiled for them, waiting for nothing."""
    dispatch.runtime_tokens.clear()
    backend.clear_backends()


@dataclasses.dataclass(frozen=True)
class BackendTable:
    """The clients that JAX has made so far."""

    clients: dict[str, Any]
    errors: dict[str, str]
    default: Any

    @classmethod
    def now(cls) -> BackendTable:
        """Returns the table as it is."""
        with xla_bridge._backend_lock:
            return cls(
                xla_bridge._backends, xla_bridge._backend_errors, xla_bridge._default_backend
            )

    def put_back(self) -> None:
        """Makes it JAX's table again."""
        with xla_bridge._backend_lock:
            xla_bridge._backends = self.clients
            xla_bridge._backend_errors = self.errors
            xla_bridge._default_backend = self.default
        xla_bridge.get_backend.cache_clear()


def register(factory: Callable[[], Any], *, undo: contextlib.ExitStack) -> None:
    """Registers the backend ``proxy``, and keeps others from registering it while it is ours.

    Args:
      factory: Makes, or returns, the client.
      undo: Gets what puts everything back.
    """
    factories = xla_bridge._backend_factories
    undo.callback(_put_back, factories, PLATFORM, factories.get(PLATFORM))
    backend.register_backend_factory(PLATFORM, factory, priority=-1)
    for module in (xla_bridge, backend):
        undo.callback(setattr, module, "register_backend_factory", module.register_backend_factory)
        module.register_backend_factory = let_pass(module.register_backend_factory)


def put_cpu_beside(table: BackendTable, *, undo: contextlib.ExitStack) -> None:
    """Has JAX make its client of the local CPU, if it has none yet, when it is first used.

    Args:
      table: JAX's clients before it was switched over.
      undo: Gets what puts JAX's own factory back.
    """
    factories = xla_bridge._backend_factories
    before = factories[local.CPU]
    if cpu := local.put_beside(table.clients.get(local.CPU)):
        undo.callback(_put_cpu_back, factories, before, cpu, local.CPU in table.clients)


def _put_cpu_back(
    factories: dict[str, Any], before: Any, cpu: local.LocalCpu, had_client: bool
) -> None:
    # A client that was made meanwhile stays the only one: arrays of two clients do not mix.
    if had_client or cpu.client is None:
        factories[local.CPU] = before


def _put_back(factories: dict[str, Any], name: str, before: Any) -> None:
    # Only what was replaced here: others may have registered platforms of their own meanwhile.
    factories.pop(name, None)
    if before is not None:
        factories[name] = before
