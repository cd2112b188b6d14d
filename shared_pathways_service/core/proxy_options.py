"""Options of a tenant's proxy, as upstream writes them: ``key:value`` strings."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable
from typing import Final

from shared_pathways_service.core.validation import check_bool
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["ProxyOptions"]

_FIELD: Final = "proxy_options"
_KEYS: Final = ("use_insecure_credentials", "xla_flags", "sidecar")
_XLA_FLAG: Final = re.compile(r"--xla_[a-z0-9_]+(=\S*)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """What a proxy is started with beside its slices.

    Attributes:
      use_insecure_credentials: Whether proxy and client speak gRPC without credentials.
      xla_flags: e.g. ``("--xla_a=1", "--xla_b")``.
      sidecar: Whether user code may run beside the workers (colocated Python).
    """

    use_insecure_credentials: bool = False
    xla_flags: tuple[str, ...] = ()
    sidecar: bool = False

    def __post_init__(self) -> None:
        check_bool(_FIELD, self.use_insecure_credentials)
        check_bool(_FIELD, self.sidecar)
        given: object = self.xla_flags
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidRequestError(_FIELD, given, "a list of flags as xla_flags")
        flags = tuple(given)
        for flag in flags:
            if not (isinstance(flag, str) and _XLA_FLAG.fullmatch(flag)):
                raise InvalidRequestError(
                    _FIELD, flag, "XLA flags of the form --xla_name or --xla_name=value"
                )
        # Frozen, yet what was given as a list is kept as a tuple.
        object.__setattr__(self, "xla_flags", flags)

    @classmethod
    def from_list(cls, options: Iterable[str] | None) -> ProxyOptions:
        """Reads ``key:value`` strings.

        Args:
          options: e.g. ``["use_insecure_credentials:true", "xla_flags:'--xla_a --xla_b=1'"]``;
            flags are separated by blanks, and given more than once they add up.

        Raises:
          InvalidRequestError: An option has no colon, an unknown key, or a value that is none.
        """
        if options is None:
            return cls()
        if isinstance(options, str) or not isinstance(options, Iterable):
            raise InvalidRequestError(_FIELD, options, "a list of 'key:value' texts")
        flags: list[str] = []
        switches: dict[str, bool] = {}
        for option in options:
            key, value = _split(option)
            if key == "xla_flags":
                flags.extend(_split_flags(option, value))
            elif key in switches:
                raise InvalidRequestError(_FIELD, option, f"{key} once")
            else:
                switches[key] = _switch(option, value)
        return cls(xla_flags=tuple(flags), **switches)


def _split(option: object) -> tuple[str, str]:
    if not isinstance(option, str) or ":" not in option:
        raise InvalidRequestError(_FIELD, option, "'key:value'")
    key, value = (part.strip() for part in option.split(":", 1))
    if key not in _KEYS:
        raise InvalidRequestError(_FIELD, option, f"a key out of {', '.join(_KEYS)}")
    return key, value


def _switch(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidRequestError(_FIELD, option, "true or false behind the colon")
    return value.lower() == "true"


def _split_flags(option: str, value: str) -> list[str]:
    try:
        # Twice: the whole list may be quoted, as in a shell, and so may single flags.
        flags = [flag for part in shlex.split(value) for flag in part.split()]
    except ValueError as error:
        raise InvalidRequestError(_FIELD, option, "flags with closed quotes") from error
    if not flags:
        raise InvalidRequestError(_FIELD, option, "at least one flag behind the colon")
    return flags
