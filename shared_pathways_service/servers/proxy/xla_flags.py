"""XLA's own flags: checked by name, and handed to XLA before it is loaded."""

from __future__ import annotations

import importlib.util
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.glog import glog

__all__ = ["use_xla_flags"]

_FORM = re.compile(r"--(xla_[a-z0-9_]+)(=\S*)?")
#: Flags of libtpu, which does not run here.
_FOR_TPUS = ("xla_tpu_", "xla_jf_", "xla_vf_", "xla_sc_", "xla_msa_")


def use_xla_flags(flags: Sequence[str]) -> list[tuple[str, str]]:
    """Puts flags into XLA_FLAGS; those that only TPUs know are left out with a warning.

    Returns:
      Names and values of the flags used: a client's compile options carry a value for every flag,
      so that XLA_FLAGS alone would concern no program.

    Raises:
      InvalidRequestError: A flag is none, or none that the installed jaxlib knows (XLA itself
        would end the process).
    """
    used = []
    values = []
    for flag in flags:
        form = _FORM.fullmatch(flag)
        if form is None:
            raise InvalidRequestError(flag, flag, "an XLA flag --xla_NAME or --xla_NAME=value")
        if form[1].startswith(_FOR_TPUS):
            glog("W", f"{flag} concerns TPUs only and is left out")
        elif not _is_known(form[1]):
            raise InvalidRequestError(
                f"--{form[1]}", flag, "a flag of XLA", message=f"unknown XLA flag --{form[1]}"
            )
        else:
            used.append(flag)
            values.append((form[1], form[2][1:] if form[2] else "true"))
    if used:
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *used]).strip()
    return values


def _is_known(name: str) -> bool:
    """Whether jaxlib's library holds the name as a whole string, as it does its flags' names."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return False
    library = max(Path(spec.origin).parent.glob("*.so"), key=lambda path: path.stat().st_size)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"\0" + name.encode() + b"\0") >= 0
