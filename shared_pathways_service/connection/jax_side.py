"""Imports JAX while the agent works, attaches it to the proxy, and detaches it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.api.faulty_jax import warning_of
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import ProxyFailed, TunnelError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime import allocator

if TYPE_CHECKING:
    import jax

    from shared_pathways_service.jax_client import Attachment

__all__ = ["JaxSide"]

#: Warnings that concern the whole process, which users have got.
_given: set[str] = set()


class JaxSide:
    """JAX of this process, for one connection."""

    def __init__(self, request: SessionRequest) -> None:
        from shared_pathways_service.jax_client import is_strict  # noqa: PLC0415 - when it is used

        self._request = request
        self._strict = is_strict(request.client.strict)
        self._attachment: Attachment | None = None

    @property
    def is_attached(self) -> bool:
        """Whether JAX is attached to the proxy."""
        return self._attachment is not None

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The proxy's devices; empty if JAX is not attached."""
        return () if self._attachment is None else self._attachment.devices

    def import_jax(self, undo: contextlib.ExitStack, tick: Callable[[], object]) -> None:
        """Imports JAX, on a thread because an interrupted import stays broken; `undo` joins it."""
        if "jax" in sys.modules:
            return
        thread = threading.Thread(target=_import_jax, name="sps-import-jax", daemon=True)
        thread.start()
        undo.callback(thread.join)
        while thread.is_alive():
            thread.join(0.1)
            tick()

    def attach(self, agent: AgentSession) -> list[str]:
        """Attaches JAX to the proxy that an agent has reached; returns warnings for the user."""
        from shared_pathways_service.jax_client import ProxyTarget, attach  # noqa: PLC0415 - jax
        from shared_pathways_service.jax_client.plugin.dumps import ignored_flags  # noqa: PLC0415 - jax

        if self._request.client.tune_allocator:
            allocator.keep_all()
        reported = agent.state
        target = ProxyTarget(
            address=reported.snapshot.address,
            token=reported.token,
            token_file=reported.token_file,
            local_devices=self._request.client.local_devices,
            strict=self._strict,
            insecure_credentials=reported.insecure_credentials,
            # (Only this project's proxies have tokens, and serve several processes of a tenant.)
            one_client=reported.token is None,
            transfer_dir=reported.transfer_dir,
            is_remote=reported.is_remote,
        )
        try:
            self._attachment = attach(target, timeout=self._request.timeout_s)
        except (TunnelError, ProxyFailed) as error:
            # The agent may soon report a more precise cause.
            failure = agent.wait_for_failure(timeouts.PROXY_END_REPORT)
            if failure is not None:
                raise failure from error
            raise
        ignored = ignored_flags() if reported.token is not None else ""
        return [warning for warning in (ignored, _fault_of_jax()) if warning]

    def cut(self) -> None:
        """Ends JAX's waits with errors, on any thread; does nothing if it is not attached."""
        attachment = self._attachment
        if attachment is not None:
            attachment.cut()

    def detach(self) -> None:
        """Restores JAX; does nothing if it is not attached."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach()


def _fault_of_jax() -> str:
    """Returns the warning about this process's release of JAX, once; otherwise nothing."""
    from jaxlib import version  # noqa: PLC0415 - when JAX is imported

    warning = warning_of(version.__version__, os.environ.get("XLA_FLAGS", ""))
    if warning in _given:
        return ""
    _given.add(warning)
    return warning


def _import_jax() -> None:
    # The error will occur again in the caller's thread when JAX is used.
    with contextlib.suppress(Exception):
        importlib.import_module("jax")
