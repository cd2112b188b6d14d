"""Profiles the proxy of a running connection, and its executors, from outside of its program."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path

from shared_pathways_service.errors import (
    CapacityError,
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
    VersionSkew,
)
from shared_pathways_service.jax_client.plugin import trace_files
from shared_pathways_service.jax_client.plugin.device_profile import DeviceProfile, ProfileFailed
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.version import __version__

__all__ = ["TakenProfile", "take_profile"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenProfile:
    """A profile on disk.

    Attributes:
      directory: Its folder, below the directory that TensorBoard is given.
      files: The names of its files, one for each process.
      notes: What is missing, and why.
    """

    directory: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def take_profile(
    name: str, address: str, token: str | None, *, seconds: float, output: Path
) -> TakenProfile:
    """Profiles a proxy and its executors for some seconds, and writes the files.

    Args:
      name: The connection, for messages.
      address: Its proxy.
      token: The proxy's token; None: none.
      seconds: The length of the profile.
      output: The directory for TensorBoard, which is made.

    Raises:
      InvalidRequestError: The directory cannot be made, or the proxy refuses so many seconds.
      PreflightError: The files cannot be written.
      CapacityError: Another profile is being taken.
      VersionSkew: The proxy has no profiles.
      ServiceNotReady: The proxy does not answer, has ended, or sends no planes.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        # (Now, and not after the profile.)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequestError(
            "--output", str(output), f"a directory that can be written to, or made ({reason})"
        ) from error
    try:
        profile = DeviceProfile(address, token)
        with contextlib.closing(profile):
            if seconds > profile.most_s:
                raise InvalidRequestError(
                    "--seconds",
                    f"{seconds:g}",
                    f"at most {profile.most_s:g}, the proxy's --trace_s",
                )
            profile.wait(seconds)
            profile.stop()
            files, notes = profile.collect()
    except ProfileFailed as error:
        raise _error_of(name, error) from error
    if not files:
        raise ServiceNotReady(
            f"{name} has been profiled without a result: {'; '.join(notes)}",
            hint=f"`sps logs {name}` shows the proxy's log",
        )
    with explained(output, "--output"):
        directory = trace_files.new_session(output)
        if cut := trace_files.add_files(directory, files):
            notes.append(cut)
    return TakenProfile(directory=directory, files=tuple(sorted(files)), notes=tuple(notes))


def _error_of(name: str, error: ProfileFailed) -> SharedPathwaysError:
    text = f"{name} cannot be profiled: {error}"
    if error.is_refused:
        return CapacityError(text, hint="wait for the end of the other profile")
    if error.is_unknown:
        return VersionSkew(text, client=f"shared-pathways-service {__version__}")
    return ServiceNotReady(text, hint=f"`sps logs {name}` shows the proxy's log")
