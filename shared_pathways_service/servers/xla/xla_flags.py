"""Checks XLA's own flags and passes them to XLA before it is loaded; checks those of programs."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import mmap
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import invalid_argument

__all__ = ["allow_long_callbacks", "check_debug_options", "is_known", "use_xla_flags"]

_FORM = re.compile(r"--(xla_[a-z0-9_]+)(=\S*)?")
#: Flags of libtpu, which does not run here.
_FOR_TPUS = ("xla_tpu_", "xla_jf_", "xla_vf_", "xla_sc_", "xla_msa_")
#: Numbers that XLA does not check: negative ones crash it, and each part into which a program may
#: be split costs time and memory, without end for 2^31.
_RANGES = {
    "xla_cpu_parallel_codegen_split_count": range(1025),
    "xla_reduce_window_rewrite_base_length": range(1 << 63),
}
#: Switches with which a valid program crashes the process.
_NEVER_ON = ("xla_disable_all_hlo_passes",)
_OFF = ("false", "0")
_PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds=3600"


def use_xla_flags(flags: Sequence[str]) -> list[tuple[str, str]]:
    """Puts flags into XLA_FLAGS, except those of TPUs; returns their names and values.

    (A client's compile options have a value for every flag, so XLA_FLAGS alone would affect no
    program.)

    Raises:
      InvalidRequestError: It is not a flag, or unknown to the installed jaxlib, or has a value that
        no program can have (XLA itself would crash).
    """
    used = []
    values = []
    for flag in flags:
        form = _FORM.fullmatch(flag)
        if form is None:
            raise InvalidRequestError(flag, flag, "an XLA flag --xla_NAME or --xla_NAME=value")
        if form[1].startswith(_FOR_TPUS):
            glog("W", f"{flag} is for TPUs only and is left out")
        elif not is_known(form[1]):
            raise InvalidRequestError(
                f"--{form[1]}", flag, "a flag of XLA", message=f"unknown XLA flag --{form[1]}"
            )
        else:
            value = form[2][1:] if form[2] else "true"
            if expected := _expected(form[1], value):
                raise InvalidRequestError(f"--{form[1]}", value, expected)
            used.append(flag)
            values.append((form[1], value))
    if used:
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *used]).strip()
    return values


def allow_long_callbacks() -> None:
    """Makes devices wait for an hour for one that calls a function of its client.

    Otherwise XLA ends the process after 40 s. It reads the time once, from XLA_FLAGS, not from a
    program's options.
    """
    others = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"--{_PATIENCE} {others}".strip()


def check_debug_options(
    options: xla_pb2.DebugOptions, overrides: Iterable[tuple[str, object]]
) -> None:
    """Refuses options of a program, and overrides, that XLA does not check and that crash it."""
    given = [(name, getattr(options, name)) for name in (*_RANGES, *_NEVER_ON)]
    for name, value in (*given, *overrides):
        if expected := _expected(name, value):
            raise invalid_argument(f"{name}={value} would crash or block XLA: expected {expected}")


def _expected(name: str, value: object) -> str:
    """Returns the allowed values if a value would crash the process; empty if it would not."""
    if name in _NEVER_ON and str(value).lower() not in _OFF:
        return "false; xla_backend_optimization_level=0 leaves out what can be left out"
    if name in _RANGES:
        right = _RANGES[name]
        # (XLA itself refuses a text that is not a number.)
        with contextlib.suppress(ValueError):
            if int(str(value)) not in right:
                return f"a number from {right.start} to {right.stop - 1}"
    return ""


@functools.cache
def is_known(name: str) -> bool:
    """Whether XLA has a flag: jaxlib's library contains the names of its flags as whole strings."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return False
    library = max(Path(spec.origin).parent.glob("*.so"), key=lambda path: path.stat().st_size)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"\0" + name.encode() + b"\0") >= 0
