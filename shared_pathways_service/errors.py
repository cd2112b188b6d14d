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

Each has a ``message`` (what happened, and where), a ``hint`` (what to do next, may be empty), and
the fields listed with it, so that a program need not parse the text. Errors of libraries are
translated once, where they enter; the original is the ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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


class SharedPathwaysError(Exception):
    """Base of all errors of this package.

    Attributes:
      message: What happened, and where; preferably one line.
      hint: What to do next; may be empty.
    """

    #: Names of the constructor's further fields, which `to_json` includes.
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """Returns the error as plain data, from which `from_json` makes an equal error."""
        data: dict[str, Any] = {"type": type(self).__name__, "message": self.message}
        data["hint"] = self.hint
        data.update({name: getattr(self, name) for name in self.fields})
        return data


class InvalidRequestError(SharedPathwaysError, ValueError):
    """A field of the request has an invalid value.

    Attributes:
      field: The argument, option or variable, as the user wrote it.
      value: The given value (as text if it came from another process).
      expected: A description of valid values.
    """

    fields = ("field", "value", "expected")

    def __init__(
        self, field: str, value: object, expected: str, *, message: str = "", hint: str = ""
    ) -> None:
        super().__init__(
            message or f"{field}={value!r} is not valid: expected {expected}", hint=hint
        )
        self.field = field
        self.value = value
        self.expected = expected

    def to_json(self) -> dict[str, Any]:
        """Returns the error as plain data; the value becomes text if JSON cannot represent it."""
        data = super().to_json()
        if not isinstance(self.value, str | int | float | bool | None):
            data["value"] = repr(self.value)
        return data


class PreflightError(SharedPathwaysError):
    """The service cannot take the request now; nothing was created."""


class AccessDenied(PreflightError):  # noqa: N818 - reads as what happened, like PermissionError's kin
    """The user is not permitted to do what the request needs.

    Attributes:
      verb: The denied action, e.g. ``create``, or ``connect`` for a refused token.
      resource: The object of the action, e.g. ``jobs``.
      namespace: The namespace; empty outside Kubernetes.
      rule: The rule that would grant the permission.
    """

    fields = ("verb", "resource", "namespace", "rule")

    def __init__(
        self,
        message: str,
        *,
        verb: str = "",
        resource: str = "",
        namespace: str = "",
        rule: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.verb = verb
        self.resource = resource
        self.namespace = namespace
        self.rule = rule


class ServiceNotFound(PreflightError):  # noqa: N818
    """No service has this address.

    Attributes:
      service: The requested address; empty: any service.
      candidates: Addresses of the services that were found.
    """

    fields = ("service", "candidates")

    def __init__(
        self, message: str, *, service: str = "", candidates: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.service = service
        self.candidates = tuple(candidates)


class ServiceNotReady(PreflightError):  # noqa: N818
    """The service exists, but does not serve (yet).

    Attributes:
      ready: Slices that are ready.
      wanted: Slices that the service should have.
      pods: Pods that are not ready, each with the reason.
    """

    fields = ("ready", "wanted", "pods")

    def __init__(
        self,
        message: str,
        *,
        ready: int = 0,
        wanted: int = 0,
        pods: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.ready = ready
        self.wanted = wanted
        self.pods = tuple(pods)


class VersionSkew(PreflightError):  # noqa: N818
    """Client and service have no version in common.

    Attributes:
      client: The client's version or range of versions.
      service: The service's version or range of versions.
    """

    fields = ("client", "service")

    def __init__(
        self, message: str, *, client: str = "", service: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.client = client
        self.service = service


class CapacityError(SharedPathwaysError):
    """A resource is not available now: slices, room in a quota, one more session."""


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

    fields = ("wanted", "free", "holders", "position", "spares")

    def __init__(
        self,
        message: str,
        *,
        wanted: Mapping[str, int] | None = None,
        free: Mapping[str, int] | None = None,
        holders: Sequence[str] = (),
        position: int | None = None,
        spares: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.wanted = dict(wanted or {})
        self.free = dict(free or {})
        self.holders = tuple(holders)
        self.position = position
        self.spares = dict(spares or {})


class PlacementTimeout(CapacityError):  # noqa: N818
    """The slices were not all placed in time.

    Attributes:
      placed: Number of placed virtual slices.
      wanted: Number of virtual slices that had to be placed.
      last_line: The last line of the proxy's log, or the last event.
      holders: Holders of slices, as in `SlicesTaken`.
    """

    fields = ("placed", "wanted", "last_line", "holders")

    def __init__(
        self,
        message: str,
        *,
        placed: int = 0,
        wanted: int = 0,
        last_line: str = "",
        holders: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.placed = placed
        self.wanted = wanted
        self.last_line = last_line
        self.holders = tuple(holders)


class ProxyFailed(SharedPathwaysError):  # noqa: N818
    """The proxy ended, or did not begin to serve.

    Attributes:
      exit_code: Its exit code; negative for a signal; None if unknown.
      log_tail: The last lines of its log.
    """

    fields = ("exit_code", "log_tail")

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        log_tail: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.log_tail = tuple(log_tail)


class CredentialsMismatch(SharedPathwaysError):  # noqa: N818
    """Client and proxy use different gRPC credentials: one speaks plaintext, the other does not.

    Attributes:
      client: The client's setting, as ``VARIABLE=value``.
      proxy: The proxy's setting, as far as its behaviour shows it.
    """

    fields = ("client", "proxy")

    def __init__(self, message: str, *, client: str = "", proxy: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.client = client
        self.proxy = proxy


class TunnelError(SharedPathwaysError):
    """The tunnel from this machine to the proxy broke.

    Attributes:
      pod: The pod, or the socket, at the far end.
      cause: The cause.
    """

    fields = ("pod", "cause")

    def __init__(self, message: str, *, pod: str = "", cause: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pod = pod
        self.cause = cause


class SliceLost(SharedPathwaysError):  # noqa: N818
    """One or more slices were lost while work ran on them.

    Attributes:
      slices: Indices of the virtual slices.
      reason: The reason, as reported by the service.
    """

    fields = ("slices", "reason")

    def __init__(
        self, message: str, *, slices: Sequence[int] = (), reason: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.slices = tuple(slices)
        self.reason = reason


class ConnectionClosed(SharedPathwaysError):  # noqa: N818
    """The connection was used after it had ended."""


class CleanupError(SharedPathwaysError):
    """Something could not be deleted.

    Attributes:
      left: Descriptions of the remaining things.
      command: The command that completes the deletion.
    """

    fields = ("left", "command")

    def __init__(
        self, message: str, *, left: Sequence[str] = (), command: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.left = tuple(left)
        self.command = command


_TYPES: dict[str, type[SharedPathwaysError]] = {
    cls.__name__: cls
    for cls in (
        SharedPathwaysError,
        InvalidRequestError,
        PreflightError,
        AccessDenied,
        ServiceNotFound,
        ServiceNotReady,
        VersionSkew,
        CapacityError,
        SlicesTaken,
        PlacementTimeout,
        ProxyFailed,
        CredentialsMismatch,
        TunnelError,
        SliceLost,
        ConnectionClosed,
        CleanupError,
    )
}


def from_json(data: Mapping[str, Any]) -> SharedPathwaysError:
    """Makes the error from plain data of `SharedPathwaysError.to_json`.

    Args:
      data: The plain data; an unknown type becomes the base class.

    Returns:
      The error, equal in type, message, hint and fields.
    """
    cls = _TYPES.get(str(data.get("type")), SharedPathwaysError)
    kwargs = {name: data[name] for name in cls.fields if name in data}
    return cls(message=data["message"], hint=data.get("hint", ""), **kwargs)
