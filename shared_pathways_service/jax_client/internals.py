"""Lists all private parts of JAX that switching it over needs, each with the reason.

Tried with the versions of JAX that `pyproject.toml` allows; `check` names the parts that another
version does not have.
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
from shared_pathways_service.jax_client.plugin.plugin import PLATFORM, ignore_proxy

__all__ = [
    "BackendTable",
    "check",
    "discover_plugins",
    "abandon_backends",
    "add_local_cpu",
    "register",
]

# Not typed, or only partly.
config: Any = jax.config
backend: Any = importlib.import_module("jax.extend.backend")
compiler: Any = importlib.import_module("jax._src.compiler")
custom_partitioning: Any = importlib.import_module("jax._src.custom_partitioning")
dispatch: Any = importlib.import_module("jax._src.dispatch")
profile_data: Any = importlib.import_module("jaxlib._profile_data")
profiler: Any = importlib.import_module("jax._src.profiler")
pjit: Any = importlib.import_module("jax._src.pjit")
pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
xla_bridge: Any = importlib.import_module("jax._src.xla_bridge")
jaxlib: Any = importlib.import_module("jaxlib._jax")
xla_client: Any = importlib.import_module("jaxlib.xla_client")

#: The class of profiles, where a release has it, and its parts.
_SESSIONS = [profiler.ProfileSession] if hasattr(profiler, "ProfileSession") else []
_OF_ONE = ("start", "stop", "is_running")

#: The module or class of a part, its name, and its purpose.
_PARTS: tuple[tuple[Any, str, str], ...] = (
    # JAX creates its clients once and stores them here. Without restoring the old ones, the CPU
    # would have another client after a connection, whose arrays do not mix with older ones.
    (xla_bridge, "_backends", "the clients that exist, by platform"),
    (xla_bridge, "_backend_errors", "the reasons why platforms have none"),
    (xla_bridge, "_default_backend", "the client that is used by default"),
    (xla_bridge, "_backend_lock", "guards these three"),
    (xla_bridge, "get_backend", "caches the look-up in them (cache_clear)"),
    # A proxy of CPUs is not the local CPU, see `local`.
    (xla_bridge, "_get_backend_uncached", "the look-up itself"),
    (xla_bridge, "canonicalize_platform", "the platform for which programs are lowered"),
    (xla_bridge, "_XLA_BACKEND", "a setting that names a platform"),
    (xla_bridge, "_PLATFORM_NAME", "another"),
    (jaxlib.Client, "_raw_platform", "the platform for which a client's programs are lowered"),
    # Functions that programs call stay here, see `callbacks`.
    (compiler, "backend_compile_and_load", "compiles a program, without them"),
    (pxla, "ExecuteReplicated", "begins a program, in a cell of a notebook for one"),
    (pjit, "_get_fastpath_data", "whether later calls bypass that"),
    (xla_bridge, "local_devices", "the device of a callback's arguments"),
    # So do functions that XLA calls while it compiles, see `compile_calls`.
    (xla_client, "encode_inspect_sharding_callback", "names one of them in a program"),
    (custom_partitioning, "_sharding_callbacks", "the others, by their names in programs"),
    (custom_partitioning, "_custom_partitioning_partition", "calls one of them"),
    (custom_partitioning, "_custom_partitioning_infer_sharding_from_operands", "another"),
    (custom_partitioning, "_custom_partitioning_propagate_user_sharding", "another"),
    # A forked child is refused these calls, see `forked`.
    (jaxlib.Client, "compile_and_load", "compiles a program"),
    (jaxlib.LoadedExecutable, "execute_sharded", "runs a program"),
    (jaxlib.ArrayImpl, "is_deleted", "is called before an array is read"),
    (jaxlib, "batched_device_put", "puts arrays on devices"),
    # A profile has the proxy's part, too, see `traced_proxies`.
    (profiler, "start_trace", "begins a profile"),
    (profiler, "stop_trace", "ends it"),
    (profiler, "ProfileOptions", "what it has"),
    *((session, name, "does both, from JAX 0.12 on") for session in _SESSIONS for name in _OF_ONE),
    (profile_data, "ProfileData", "reads its files"),
    # A factory can be registered publicly, but not removed or restored.
    (xla_bridge, "_backend_factories", "the factories, by platform"),
    # Libraries register by this name or by the public one: both must ignore a second `proxy`.
    (xla_bridge, "register_backend_factory", "registers a factory"),
    # Plug-ins that are discovered later would register their `proxy` over ours.
    (xla_bridge, "_discover_and_register_pjrt_plugins", "looks for plug-ins, once"),
    # clear_backends() waits for them, which never ends well on a proxy that has ended or hangs.
    (dispatch, "runtime_tokens", "the effects that are not awaited yet (clear)"),
)


def check() -> None:
    """Checks that this JAX has all the private parts; raises VersionSkew otherwise."""
    missing = [
        f"{module.__name__}.{name}" for module, name, _ in _PARTS if not hasattr(module, name)
    ]
    if missing:
        raise VersionSkew(
            f"jax {jax.__version__} has no {', '.join(missing)}, which the switch to a proxy needs",
            client=f"jax {jax.__version__}",
            hint="install a version of jax that meets this package's requirements",
        )


def discover_plugins() -> None:
    """Makes JAX discover its plug-ins now if it has not yet."""
    xla_bridge._discover_and_register_pjrt_plugins()


def leave_backends() -> None:
    """Makes JAX drop its clients and all programs compiled for them, after waiting for them."""
    backend.clear_backends()


def abandon_backends() -> None:
    """Makes JAX drop its clients and all programs compiled for them, without waiting."""
    dispatch.runtime_tokens.clear()
    backend.clear_backends()


@dataclasses.dataclass(frozen=True)
class BackendTable:
    """The clients that JAX has created so far."""

    clients: dict[str, Any]
    errors: dict[str, str]
    default: Any

    @classmethod
    def now(cls) -> BackendTable:
        """Returns the current table."""
        with xla_bridge._backend_lock:
            return cls(
                xla_bridge._backends, xla_bridge._backend_errors, xla_bridge._default_backend
            )

    def restore(self) -> None:
        """Restores this table in JAX."""
        with xla_bridge._backend_lock:
            xla_bridge._backends = self.clients
            xla_bridge._backend_errors = self.errors
            xla_bridge._default_backend = self.default
        xla_bridge.get_backend.cache_clear()


def register(factory: Callable[[], Any], *, undo: contextlib.ExitStack) -> None:
    """Registers the backend ``proxy``, and ignores other registrations of it meanwhile."""
    factories = xla_bridge._backend_factories
    undo.callback(_restore, factories, PLATFORM, factories.get(PLATFORM))
    backend.register_backend_factory(PLATFORM, factory, priority=-1)
    for module in (xla_bridge, backend):
        undo.callback(setattr, module, "register_backend_factory", module.register_backend_factory)
        module.register_backend_factory = ignore_proxy(module.register_backend_factory)


def add_local_cpu(table: BackendTable, *, undo: contextlib.ExitStack) -> None:
    """Lets JAX create its client of the local CPU on first use, if it had none in `table`."""
    factories = xla_bridge._backend_factories
    before = factories[local.CPU]
    if cpu := local.add_lazily(table.clients.get(local.CPU)):
        undo.callback(_restore_cpu, factories, before, cpu, local.CPU in table.clients)


def _restore_cpu(
    factories: dict[str, Any], before: Any, cpu: local.LocalCpu, had_client: bool
) -> None:
    # A client that was created meanwhile remains the only one: arrays of two clients do not mix.
    if had_client or cpu.client is None:
        factories[local.CPU] = before


def _restore(factories: dict[str, Any], name: str, before: Any) -> None:
    # Only what was replaced here: others may have registered their own platforms meanwhile.
    factories.pop(name, None)
    if before is not None:
        factories[name] = before
