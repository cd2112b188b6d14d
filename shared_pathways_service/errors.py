"""The exceptions of this package.

    SharedPathwaysError
    ├── InvalidRequestError (also a ValueError)   the request itself is wrong; nothing was started
    ├── PreflightError                            the service cannot take the request now
    │   ├── AccessDenied
    │   ├── ServiceNotFound
    │   ├── ServiceNotReady
    │   └── VersionSkew
    ├── CapacityError                             the slices are not available
    │   ├── SlicesTaken
    │   └── PlacementTimeout
    ├── ProxyFailed                               the proxy ended, or did not begin to serve
    ├── CredentialsMismatch                       client and proxy use different gRPC credentials
    ├── TunnelError                               the tunnel to the proxy broke
    ├── SliceLost                                 a slice was lost while work ran on it
    ├── ConnectionClosed                          the connection was used after it ended
    └── CleanupError                              something could not be deleted

Each has fields, so that a program need not parse the text. Errors of libraries are translated once,
where they enter; the original is the ``__cause__``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AccessDenied",
    "CapacityError",
    "CleanupError",
    "ConnectionClosed",
    "CredentialsMismatch",
    "InvalidRequestError",
    "PlacementTimeout",
    "PreflightError",
    "ProxyFailed",
    "ServiceNotFound",
    "ServiceNotReady",
    "SharedPathwaysError",
    "SliceLost",
    "SlicesTaken",
    "TunnelError",
    "VersionSkew",
    "from_json",
]


@dataclasses.dataclass(eq=False, repr=False)
class SharedPathwaysError(Exception):
    """Base of all errors of this package.

    Attributes:
      message: What happened, and where; preferably one line.
      hint: What to do next; may be empty.
    """

    message: str
    hint: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.args = (self.message,)
        # Plain data has lists where callers compare with tuples, and of mappings only dictionaries.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Mapping):
                setattr(self, field.name, dict(value))
            elif isinstance(value, Sequence) and not isinstance(value, str):
                setattr(self, field.name, tuple(value))

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """Returns the error as plain data, from which `from_json` makes an equal error."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"type": type(self).__name__, **fields}


@dataclasses.dataclass(eq=False, repr=False, init=False)
class InvalidRequestError(SharedPathwaysError, ValueError):
    """A field of the request has an invalid value.

    Attributes:
      field: The argument, option or variable, as the user wrote it.
      value: The given value (as text if it came from another process).
      expected: A description of valid values.
    """

    field: str
    value: object
    expected: str

    def __init__(
        self, field: str, value: object, expected: str, *, message: str = "", hint: str = ""
    ) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        self.message = message or f"{field}={value!r} is not valid: expected {expected}"
        self.hint = hint
        self.args = (self.message,)

    def to_json(self) -> dict[str, Any]:
        """Returns the error as plain data; the value becomes text if JSON cannot represent it."""
        data = super().to_json()
        if not isinstance(self.value, str | int | float | bool | None):
            data["value"] = repr(self.value)
        return data


class PreflightError(SharedPathwaysError):
    """The service cannot take the request now; the request got no slices."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class AccessDenied(PreflightError):  # noqa: N818 - reads as what happened, like PermissionError's kin
    """The user is not permitted to do what the request needs.

    Attributes:
      verb: The denied action, e.g. ``create``, or ``connect`` for a refused token.
      resource: The object of the action, e.g. ``jobs``.
      namespace: The namespace; empty outside Kubernetes.
      rule: The rule that would grant the permission.
    """

    verb: str = ""
    resource: str = ""
    namespace: str = ""
    rule: str = ""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ServiceNotFound(PreflightError):  # noqa: N818
    """No service has this address.

    Attributes:
      service: The requested address; empty: any service.
      candidates: Addresses of the services that were found.
    """

    service: str = ""
    candidates: Sequence[str] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ServiceNotReady(PreflightError):  # noqa: N818
    """The service exists, but does not serve (yet).

    Attributes:
      ready: Slices that are ready.
      wanted: Slices that the service should have.
      pods: Pods that are not ready, each with the reason.
    """

    ready: int = 0
    wanted: int = 0
    pods: Sequence[str] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class VersionSkew(PreflightError):  # noqa: N818
    """Client and service have no version in common.

    Attributes:
      client: The client's version or range of versions.
      service: The service's version or range of versions.
    """

    client: str = ""
    service: str = ""


class CapacityError(SharedPathwaysError):
    """A resource is not available now: slices, room in a quota, one more session."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class SlicesTaken(CapacityError):  # noqa: N818
    """Other tenants hold the slices.

    Attributes:
      wanted: Requested slices, by instance type.
      free: Free slices, by instance type.
      holders: Holders of slices, as ``user@host: 2 x tpuv6e:2x2``.
      position: Last position in the queue, from 1; None if the request did not queue.
      spares: Slices that the service reserves as spares, by instance type, if the request would
        have been granted with them; otherwise empty.
    """

    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: Sequence[str] = ()
    position: int | None = None
    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class PlacementTimeout(CapacityError):  # noqa: N818
    """The slices were not all placed in time.

    Attributes:
      placed: Number of placed virtual slices.
      wanted: Number of virtual slices that had to be placed.
      last_line: The last line of the proxy's log, or the last event.
      holders: Holders of slices, as in `SlicesTaken`.
    """

    placed: int = 0
    wanted: int = 0
    last_line: str = ""
    holders: Sequence[str] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ProxyFailed(SharedPathwaysError):  # noqa: N818
    """The proxy ended, or did not begin to serve.

    Attributes:
      exit_code: Its exit code; negative for a signal; None if unknown.
      log_tail: The last lines of its log.
    """

    exit_code: int | None = None
    log_tail: Sequence[str] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CredentialsMismatch(SharedPathwaysError):  # noqa: N818
    """Client and proxy use different gRPC credentials: one speaks plaintext, the other does not.

    Attributes:
      client: The client's setting, as ``VARIABLE=value``.
      proxy: The proxy's setting, as far as its behaviour shows it.
    """

    client: str = ""
    proxy: str = ""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class TunnelError(SharedPathwaysError):
    """The tunnel from this machine to the proxy broke.

    Attributes:
      pod: The pod, or the socket, at the far end.
      cause: The cause.
    """

    pod: str = ""
    cause: str = ""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class SliceLost(SharedPathwaysError):  # noqa: N818
    """One or more slices were lost while work ran on them.

    Attributes:
      slices: Indices of the virtual slices.
      reason: The reason, as reported by the service.
    """

    slices: Sequence[int] = ()
    reason: str = ""


class ConnectionClosed(SharedPathwaysError):  # noqa: N818
    """The connection was used after it had ended."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CleanupError(SharedPathwaysError):
    """Something could not be deleted.

    Attributes:
      left: Descriptions of the remaining things.
      command: The command that completes the deletion.
    """

    left: Sequence[str] = ()
    command: str = ""


_TYPES: Mapping[str, type[SharedPathwaysError]] = {
    name: globals()[name] for name in __all__ if name != "from_json"
}


def from_json(data: Mapping[str, Any]) -> SharedPathwaysError:
    """Makes the error from plain data of `SharedPathwaysError.to_json`.

    Args:
      data: The plain data; an unknown type becomes the base class.

    Returns:
      The error, equal in type, message, hint and fields.
    """
    cls = _TYPES.get(str(data.get("type")), SharedPathwaysError)
    names = {field.name for field in dataclasses.fields(cls)} - {"message"}
    return cls(message=data["message"], **{name: data[name] for name in names if name in data})
