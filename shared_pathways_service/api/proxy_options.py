"""Options of a tenant's proxy, in upstream's form: ``key:value`` strings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.api.ffi_targets import read_ffi_targets
from shared_pathways_service.api.proxy_limits import LIMITS, asked_limits, check_limit
from shared_pathways_service.api.validation import check_bool, check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["ProxyOptions", "split_options"]

_FIELD: Final = "proxy_options"
_XLA_FLAG: Final = re.compile(r"--xla_[a-z0-9_]+(=\S*)?")
#: A positive Kubernetes quantity.
_QUANTITY: Final = re.compile(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?")
_NAME: Final = r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?"
_KEY: Final = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE: Final = re.compile(rf"({_NAME})?")
_EFFECTS: Final = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
#: A comma before a key, but not before a taint without a value, e.g. `dedicated:NoSchedule`.
_BEFORE_KEY: Final = re.compile(
    rf",(?=\s*[A-Za-z_]+:)(?!\s*[A-Za-z_]+:(?:{'|'.join(_EFFECTS[1:])})\s*(?:,|$))"
)
#: The user of Pathways' images in the public manifests.
_DEFAULT_USER: Final = 1000
_USER_LIMIT: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """Options with which a proxy starts; all from `cpu` on apply to Kubernetes only.

    Attributes:
      use_insecure_credentials: Whether proxy and client speak gRPC in plaintext. Outside the
        cluster the traffic uses TLS even so, because the tunnel goes through the API server. False:
        Google's default, ALTS, which works only between machines of Google Cloud; our images refuse
        it.
      xla_flags: e.g. ``("--xla_a=1", "--xla_b")``.
      ffi_targets: Functions of the user's libraries that programs may call (`jax.ffi.ffi_call`),
        as ``NAME=LIBRARY:SYMBOL``, e.g. ``("scale=libscale.so:Scale",)``: the proxy loads LIBRARY,
        a file in the directory that the operator of an embedded service allows (``sps serve
        --allow-ffi-libraries DIR``).
      sidecar: Whether functions of `jax.experimental.colocated_python` run beside the devices: in
        the sidecars of a service with Google's images, which it must have; with our images and in
        an embedded service on CPUs only: in a process of the proxy's own with the engine ``local``,
        on the executors' hosts with ``distributed``, if the operator allows it.
      device_memory_limit_bytes: Maximum memory of the proxy on each device. This limit and those
        below it may only lower the service's limits, so that a program fails before it disturbs
        others (see docs/isolation.md); None: the service's limit. Only our images support them.
      host_memory_limit_bytes: Likewise, host buffers in transfer.
      max_handles: Likewise, arrays, programs, executions and futures of a session.
      max_requests: Likewise, unanswered requests of a session.
      max_message_bytes: Likewise, the size of a request.
      max_sessions: Likewise, concurrent sessions.
      trace_s: Likewise, seconds of a profile (`jax.profiler`, ``sps profile``).
      trace_bytes: Likewise, bytes of a profile.
      cpu: CPU request of its pod, as a Kubernetes quantity, e.g. ``"4"`` or ``"500m"``.
      memory: Memory request and limit of its pod, e.g. ``"32Gi"``.
      node_selector: Labels that its node must have.
      tolerations: Taints that its node may have, as ``KEY[=VALUE][:EFFECT]``.
      host_network: Whether its pod uses the node's network, and port 29000 of the node: a little
        faster, but one proxy per node, and not with restricted pod security.
      run_as_user: The numerical user of its container; 0: the image's own, usually root, and not
        with restricted pod security.
    """

    use_insecure_credentials: bool = True
    xla_flags: tuple[str, ...] = ()
    ffi_targets: tuple[str, ...] = ()
    sidecar: bool = False
    device_memory_limit_bytes: int | None = None
    host_memory_limit_bytes: int | None = None
    max_handles: int | None = None
    max_requests: int | None = None
    max_message_bytes: int | None = None
    max_sessions: int | None = None
    trace_s: int | None = None
    trace_bytes: int | None = None
    cpu: str = "4"
    memory: str = "32Gi"
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    tolerations: tuple[str, ...] = ()
    host_network: bool = False
    run_as_user: int = _DEFAULT_USER

    def __post_init__(self) -> None:
        for switch in (self.use_insecure_credentials, self.sidecar, self.host_network):
            check_bool(_FIELD, switch)
        check_int(_FIELD, self.run_as_user, low=0, high=_USER_LIMIT)
        for name in LIMITS:
            if getattr(self, name) is not None:
                check_limit(_FIELD, name, getattr(self, name))
        for quantity in (self.cpu, self.memory):
            _check_quantity(quantity)
        # Lists become tuples and mappings are copied, so that the options cannot change.
        for name, check in (
            ("xla_flags", _check_flag),
            ("ffi_targets", _check_text),
            ("tolerations", _check_toleration),
        ):
            object.__setattr__(self, name, _texts(getattr(self, name), name, check))
        read_ffi_targets(self.ffi_targets, field=_FIELD)
        object.__setattr__(self, "node_selector", _check_selector(self.node_selector))

    @property
    def limits(self) -> dict[str, int]:
        """The requested limits, by name."""
        return asked_limits(self)

    @classmethod
    def from_list(cls, options: Iterable[str] | None) -> ProxyOptions:
        """Parses ``key:value`` strings; warns of an unknown key (`UserWarning`) and ignores it.

        Args:
          options: e.g. ``["use_insecure_credentials:false", "xla_flags:'--xla_a --xla_b=1'",
            "cpu:8", "node_selector:KEY=VALUE,KEY=VALUE", "tolerations:KEY=VALUE:NoSchedule"]``;
            flags are separated by blanks, labels and taints by commas; all these accumulate if they
            are given more than once.

        Raises:
          InvalidRequestError: An option has no colon, or its value is invalid.
        """
        if options is None:
            return cls()
        if isinstance(options, str) or not isinstance(options, Iterable):
            raise InvalidRequestError(_FIELD, options, "a list of 'key:value' texts")
        values: dict[str, Any] = {}
        for option in options:
            key, value = _split(option)
            if key not in _READERS:
                _warn_of_unknown(option)
                continue
            read = _READERS[key](option, value)
            if key not in values:
                values[key] = read
            elif isinstance(read, tuple):
                values[key] += read
            elif isinstance(read, dict):
                values[key] |= read
            else:
                raise InvalidRequestError(_FIELD, option, f"{key} once")
        return cls(**values)


# ---- checks of values


def _texts(given: object, name: str, check: Callable[[object], object]) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidRequestError(_FIELD, given, f"a list of texts as {name}")
    texts = tuple(given)
    for text in texts:
        check(text)
    return texts


def _check_flag(flag: object) -> None:
    if not (isinstance(flag, str) and _XLA_FLAG.fullmatch(flag)):
        raise InvalidRequestError(
            _FIELD, flag, "XLA flags of the form --xla_name or --xla_name=value"
        )


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(_FIELD, text, "texts as ffi_targets")


def _check_quantity(text: object) -> None:
    if not (isinstance(text, str) and _QUANTITY.fullmatch(text)):
        raise InvalidRequestError(
            _FIELD, text, "a quantity of Kubernetes as cpu and memory, e.g. '4', '500m' or '32Gi'"
        )


def _check_toleration(text: object) -> None:
    taint, _, effect = text.partition(":") if isinstance(text, str) else ("", "", "?")
    key, _, value = taint.partition("=")
    if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value) and effect in _EFFECTS):
        raise InvalidRequestError(
            _FIELD, text, f"a taint KEY[=VALUE][:EFFECT], with an effect {', '.join(_EFFECTS[1:])}"
        )


def _check_selector(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(_FIELD, given, "a mapping of labels to values as node_selector")
    for key, value in given.items():
        right = isinstance(key, str) and isinstance(value, str)
        if not (right and _KEY.fullmatch(key) and _VALUE.fullmatch(value)):
            raise InvalidRequestError(_FIELD, f"{key}={value}", "a node's label KEY=VALUE")
    return dict(given)


def split_options(texts: Iterable[str]) -> list[str]:
    """Splits each ``key:value,key:value`` at the commas before a key, not at those within a value.

    Upstream's commands accept options in this form.
    """
    return [option for text in texts if text for option in _BEFORE_KEY.split(text)]


# ---- parsers of texts


def _split(option: object) -> tuple[str, str]:
    if not isinstance(option, str) or ":" not in option:
        raise InvalidRequestError(_FIELD, option, "'key:value'")
    key, value = (part.strip() for part in option.split(":", 1))
    if not key:
        raise InvalidRequestError(_FIELD, option, "a key before the colon")
    return key.lower(), value


def _warn_of_unknown(option: str) -> None:
    warnings.warn(
        f"{_FIELD}: {option!r} is ignored, its key is unknown; known keys: {', '.join(_READERS)}",
        stacklevel=_level_of_user(),
    )


def _level_of_user() -> int:
    """Returns the `stacklevel` at which a warning points to the first line outside this package."""
    package = __name__.partition(".")[0]
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(f"{package}."):
        level, frame = level + 1, frame.f_back
    return level


def _switch(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidRequestError(_FIELD, option, "true or false behind the colon")
    return value.lower() == "true"


def _flags(option: str, value: str) -> tuple[str, ...]:
    try:
        # Split twice: the whole list may be quoted, as in a shell, and also single flags.
        flags = tuple(flag for part in shlex.split(value) for flag in part.split())
    except ValueError as error:
        raise InvalidRequestError(_FIELD, option, "flags with closed quotes") from error
    if not flags:
        raise InvalidRequestError(_FIELD, option, "at least one flag behind the colon")
    return flags


def _text(_option: str, value: str) -> str:
    return value


def _labels(option: str, value: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in value.split(","):
        key, equals, text = part.strip().partition("=")
        if not equals or key in labels:
            raise InvalidRequestError(_FIELD, option, "labels KEY=VALUE, each once")
        labels[key] = text
    return labels


def _listed(_option: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(","))


def _limit(option: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", value):
        raise InvalidRequestError(_FIELD, option, "a whole number behind the colon")
    return int(value)


def _user(option: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", value):
        raise InvalidRequestError(_FIELD, option, "a user's number behind the colon")
    return int(value)


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "use_insecure_credentials": _switch,
    "xla_flags": _flags,
    "ffi_targets": _listed,
    "sidecar": _switch,
    **dict.fromkeys(LIMITS, _limit),
    "cpu": _text,
    "memory": _text,
    "node_selector": _labels,
    "tolerations": _listed,
    "host_network": _switch,
    "run_as_user": _user,
}
