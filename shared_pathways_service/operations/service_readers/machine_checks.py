"""Checks this machine for `sps doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

from shared_pathways_service.agent.journal import journal_entries
from shared_pathways_service.api.checks import Check, Outcome, judge
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.version import __version__

__all__ = ["machine_checks"]

#: Bytes of free space that logs and the journal need.
_MIN_SPACE = 100 << 20


def machine_checks(settings: Settings) -> list[Check]:
    """Checks the requirements of every connection on this machine."""
    return [
        _versions_check(),
        judge("runtime directory", lambda: _private(settings.runtime_dir, "SPS_RUNTIME_DIR")),
        judge(
            "state directory",
            lambda: _private(settings.state_dir, "SPS_STATE_DIR"),
            warns=lambda: _low_on_space(settings),
        ),
        _journal_check(settings),
        judge("open files", _open_files, warns=_short_of_descriptors),
        _credentials_check(os.environ.get(INSECURE_VARIABLE)),
    ]


def _private(path: Path, field: str) -> str:
    return str(private_directory(path, field))


def _versions_check() -> Check:
    jax, jaxlib = importlib.metadata.version("jax"), importlib.metadata.version("jaxlib")
    found = (
        f"shared-pathways-service {__version__}, Python {platform.python_version()}, "
        f"jax {jax}, jaxlib {jaxlib}"
    )
    if jax.split(".")[:2] == jaxlib.split(".")[:2]:
        return Check(name="versions", outcome=Outcome.OK, found=found)
    fix = f"pip install jax=={jax} jaxlib=={jax}"
    return Check(name="versions", outcome=Outcome.WARNING, found=found, fix=fix)


def _low_on_space(settings: Settings) -> str:
    directory = private_directory(settings.state_dir, "SPS_STATE_DIR")
    free = shutil.disk_usage(directory).free
    return f"{directory} has {free >> 20} MiB left" if free < _MIN_SPACE else ""


def _open_files() -> str:
    descriptors.check_room()
    most = descriptors.limit()
    return "no limit" if most is None else f"at most {most} (RLIMIT_NOFILE)"


def _short_of_descriptors() -> str:
    most = descriptors.limit()
    if most is None or most >= descriptors.NEEDED:
        return ""
    return (
        f"a program may have only {most} files open (RLIMIT_NOFILE); run `ulimit -n "
        f"{descriptors.ADVISED}` to leave room for its own files and connections"
    )


def _journal_check(settings: Settings) -> Check:
    entries = journal_entries(settings)
    abandoned = [entry.name for entry in entries if entry.abandoned]
    if abandoned:
        return Check(
            name="journal",
            outcome=Outcome.WARNING,
            found=f"dead programs left {', '.join(abandoned)} behind",
            fix="`sps reap` deletes them, and so does the next connection",
        )
    found = f"{len(entries)} connections of yours, all with a running agent or program"
    return Check(name="journal", outcome=Outcome.OK, found=found)


def _credentials_check(value: str | None) -> Check:
    """Checks the variable by which JAX's client chooses gRPC credentials."""
    name = "credentials"
    if value is None:
        found = f"{INSECURE_VARIABLE} is not set: connect() and `sps run` set it for the client"
        return Check(name=name, outcome=Outcome.OK, found=found)
    found = f"{INSECURE_VARIABLE}={value}"
    if value == "true":
        return Check(name=name, outcome=Outcome.OK, found=f"{found}: plaintext, the default")
    meaning = (
        "a client uses ALTS, which exists only on machines of Google Cloud"
        if value == "false"
        else "JAX's client ignores any value but 'true', and the plug-in refuses it"
    )
    return Check(
        name=name,
        outcome=Outcome.WARNING,
        found=f"{found}: without connect() or `sps run`, which set it themselves, {meaning}",
        fix=f"unset {INSECURE_VARIABLE}; to use ALTS, pass "
        "--proxy-options=use_insecure_credentials:false",
    )


# ---- the embedded service
